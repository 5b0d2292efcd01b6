"""The style of the page: one column on a phone, two on a screen, light or dark as the reader has it."""

STYLE = """\
:root { --paper: #f6f7f9; --card: #ffffff; --ink: #22272e; --soft: #5c6773; --line: #dfe3e8; --accent: #0072b2;
  --good: #0b6e4f; --good-back: #dff3ea; --bad: #a63a00; --bad-back: #fde9de; --mid: #6b5300; --mid-back: #fbf0cf; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12151a; --card: #1b1f24; --ink: #e3e7ec; --soft: #9aa5b1; --line: #313840; --accent: #6bb8ee;
    --good: #6fd9ae; --good-back: #12382b; --bad: #ffab85; --bad-back: #472110; --mid: #f0d36b; --mid-back: #3d3209; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 16px 40px; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .7rem; }
h3 { font-size: 1rem; margin: 0 0 .2rem; }
p { margin: .3rem 0; }
.kicker { color: var(--accent); font-weight: 600; font-size: .85rem; letter-spacing: .04em; margin: 0 0 .2rem; }
section { margin-top: 2rem; }
h2 + .note { margin: -.5rem 0 .8rem; }
.absent { margin-top: .8rem; }
.absent b { color: var(--ink); }
.note, figcaption p { color: var(--soft); font-size: .88rem; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: .05rem .55rem; border-radius: 99px; font-size: .85rem; font-weight: 600; }
.good { color: var(--good); background: var(--good-back); }
.bad { color: var(--bad); background: var(--bad-back); }
.so-so { color: var(--mid); background: var(--mid-back); }
.badly { list-style: none; padding: 0; margin: .4rem 0; overflow-wrap: anywhere; }
.badly li { margin: .25rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 12px; margin-top: 1rem; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .7rem .9rem; }
.tile .name, .rest { display: block; color: var(--soft); font-size: .84rem; }
td .rest { white-space: nowrap; }
td .rest.words { white-space: normal; min-width: 9rem; }
.tile b { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .55rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; font-size: .82rem; line-height: 1.25; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--card); min-width: min(34vw, 8.5rem);
  overflow-wrap: break-word; }
td.long { min-width: 15rem; overflow-wrap: anywhere; }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px; }
figure img { display: block; width: 100%; height: auto; border-radius: 6px; }
figure h3 { padding: 0 .3rem; margin-bottom: .5rem; }
figcaption { padding: .4rem .3rem .1rem; }
footer { margin-top: 2.2rem; color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
footer ul { margin: .2rem 0; padding-left: 1.2rem; }
@media print { figure, .tile, .scroll { break-inside: avoid; } }
"""

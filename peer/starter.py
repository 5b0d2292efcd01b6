"""The experiment file that `earshot new` writes: every key that is built, with its default, explained."""

_TEXT = """\
# An experiment of Earshot: peers train one model, each on its own shard of the data, and gossip
# their parameters with the peers within earshot.
#
#   earshot explain FILE                shows who hears whom, before anything trains
#   earshot simulate FILE               trains with virtual peers in one process
#   earshot up FILE                     trains with one daemon per peer on this machine
#   earshot start FILE --name lab-3     runs this machine's daemon of an experiment on many machines
#
# Every key may be left out. The values here are the defaults; keys that have none are commented out.

name = "experiment"             # names the run's folder: runs/<name>-<time>
seed = 0                        # the same seed gives the same run
rounds = 200                    # 0: until stopped
stop_when = ""                  # ends the run at the first evaluation that is so: "accuracy.mean >= 0.93"
stop_after_s = 0.0              # ends it after so many seconds, in the events engine simulated ones; 0: never
eval_every = 10                 # rounds from one evaluation to the next

[task]                          # what is trained, and on which data
model = "cnn"                   # cnn | mlp | softmax | linear | "package.module:factory"
data = "mnist5k"                # mnist5k | inline (shards) | none (init alone is gossiped)
                                # | "torchvision:NAME" | "npz:PATH" (arrays x, y; x_test, y_test)
                                # | "package.module:factory"
partition = "iid"               # iid | dirichlet (alpha) | by_class (classes_per_peer) | sizes (sizes)
                                # | sample (rows_per_peer, with replacement) | own ([[peers]] data)
alpha = 0.3                     # dirichlet: the smaller, the more the shards differ
# classes_per_peer = 2          # by_class: how many classes each peer holds
# sizes = [100, 50, 50]         # sizes: the number of rows of each peer
# rows_per_peer = 200           # sample: how many rows each peer draws
batch_size = 32                 # rows per local step; 0: the whole shard
local_steps = 1                 # steps of training in each round, before the exchange
optimizer = "sgd"               # the only one so far
lr = 0.05                       # learning rate; 0.0 makes it pure gossip
lr_schedule = "constant"        # constant | cosine | step
warmup_rounds = 0               # rounds in which the learning rate rises to lr
momentum = 0.0                  # from 0 to below 1
weight_decay = 0.0
proximal_mu = 0.0               # FedProx: pulls local steps back towards where the round began
dtype = "float32"               # float32 | float64 (for exact checks)
device = "auto"                 # auto | cpu | cuda | "cuda:1"
threads = 1                     # processor threads of each peer
step = "auto"                   # how the local step is computed: auto | vmap | plain
# shards = [[[[1.0], 3.0]], [[[2.0], 5.0]]]   # inline: per peer a list of [features, target]
# init = [1.5]                  # the start: flat for all peers, nested [[1.0], [2.0]] for each peer its own

[topology]                      # who hears whom
family = "ring"                 # ring | path | grid | torus | star | complete | hypercube | exponential
                                # | regular | geometric | smallworld | erdos_renyi | barabasi_albert
                                # | "file:graph.edges" | "networkx:petersen_graph" | "package.module:factory"
                                # new in every round: one_peer_exponential | base_k | random_matching
                                # | epidemic | mobile (peers move, in the unit square)
peers = 8                       # left out where shape, shards, init, a graph file or [[peers]] tell it
# shape = [4, 8]                # grid, torus
# degree = 4                    # regular: neighbours of each peer
# k = 4                         # smallworld: neighbours of each peer before rewiring
                                # base_k: the most neighbours in a round; 1 where left out
# p = 0.1                       # smallworld: chance of rewiring an edge; erdos_renyi: chance of an edge
# m = 2                         # barabasi_albert: edges of each new peer
# fanout = 3                    # epidemic: how many peers each one sends to; log2 of the peers where left out
# variant = "oracle"            # epidemic: oracle (each hears as many as it sends to) | local (it does not know)
# pairs = 0                     # random_matching: how many pairs meet in a round; 0: as many as can
# among = "complete"            # random_matching: along whose edges: complete | ring | path | star | hypercube
                                # | "file:graph.edges"
# speed = 0.02                  # mobile: how far a peer moves in a round, in sides of the square
# margin = 0.05                 # mobile: peers connect within threshold - margin, and drop beyond threshold;
                                # a tenth of the threshold where left out
# args = {n = 10}               # the arguments of a networkx generator, or of your own function
# directed = true               # file: the lines are arcs, and "u v" means that v hears u
# seed = 0                      # of random graphs, meetings and walks; the experiment's where left out
metric = "hops"                 # distance: hops | weight (along the shortest path) | position (geometric, mobile)
                                # | rtt (the round trip in ms; daemons measure it, the simulator has [network])
                                # | model (how far apart the parameters of neighbours are)
threshold = 1.0                 # neighbours are at most so far away; no default for geometric, mobile, rtt, model
# look_again = 10               # model: after how many rounds two that were too far apart look again
weights = "auto"                # auto | metropolis | uniform (1/(degree+1)) | lazy ((I + metropolis)/2)
                                # | push (columns sum to 1, for push_sum)
allow_disconnected = false      # true: train although some peers can never hear of each other

[algorithm]                     # what peers do with what they hear
# name = "dpsgd"                # dpsgd (the default) | gradient_tracking | d2 | push_sum (directed graphs) | diloco
                                # | adpsgd (pairs average, and nobody waits)
                                # | local (no gossip) | exact (the mean of all, whatever the topology)
                                # | "package.module:factory"
                                # beside a coordinator: easgd, or nothing; leave the line out
mode = "sync"                   # sync (peers go from round to round together) | async (dpsgd: each mixes what it
                                # has heard so far; a round is then as many local rounds in all as there are peers)
order = "atc"                   # dpsgd: atc (adapt, then combine) | cta; gradient_tracking: atc | diging
# outer_lr = 0.7                # diloco: learning rate of the outer step
# outer_momentum = 0.9          # diloco
# nesterov = true               # diloco: false is heavy ball
# among = "all"                 # diloco: the mean of all | neighbours
# alpha = 0.1                   # easgd: the part of the way that the coordinator goes to each peer, and each peer
                                # to it; 0.9 / the number of peers where left out
# allow_unstable = false        # d2: true runs it where it is known to diverge
# max_staleness = 10            # async: what a peer has had for more of its own rounds is not mixed any more
combine = "weighted_sum"        # the only one so far
share = ["*"]                   # which parameters are gossiped, by name, such as ["encoder.*"]
buffers = "average"             # such as BatchNorm's statistics: average | keep (each peer its own)

[compression]                   # makes messages smaller
name = "none"                   # none | fp16 | bf16 (numbers of 16 bits, to a coordinator and back)

[coordinator]                   # a server in place of gossip; then [algorithm] has no name, or easgd
mode = "none"                   # none | sync (all push, then one update) | async (each push is one update)
                                # | quorum (enough have pushed) | buffered (so many pushes are one update)
                                # | ring (no server: the peers sum up around a ring)
name = "coordinator"            # a peer's name: that peer trains too; else a process of its own, whose address
                                # stands in [[peers]] and which does not count in topology.peers
aggregate = "gradients"         # what is pushed: gradients (of one local step) | models (after local_steps)
weighting = "samples"           # sync, quorum, ring: samples (by the rows of each peer) | equal
fraction = 1.0                  # sync: the part of the peers that is drawn for each round
server_optimizer = "sgd"        # what makes an update of the pushes: sgd | momentum | adam | yogi | adagrad
# server_lr = 1.0               # its learning rate; where left out 1.0 for models, and for gradients the task's lr
# server_momentum = 0.9         # momentum: from 0 to below 1
# beta1 = 0.9                   # adam, yogi, adagrad (there 0 where left out): kept of the mean of the pushes
# beta2 = 0.99                  # adam, yogi: kept of the mean of their squares
# server_tau = 0.001            # adam, yogi, adagrad: the smaller, the more each parameter has a rate of its own
# variant = "paper"             # adam, yogi, adagrad: paper (Reddi et al., 2021) | zero_start | flower
staleness = "constant"          # what an update weighs that missed tau versions, in async, buffered and quorum:
                                # constant (1) | inverse (1/(1+tau)) | inverse_sqrt (1/sqrt(1+tau))
max_staleness = 0               # async: a peer that would be ahead by more versions waits; 0: no bound
quorum = 0.8                    # quorum: a part of the peers up to 1.0, or a count of 2 and more
timer_s = 0.0                   # quorum: closes a round after so long, with whoever has pushed; 0: never
late = "drop"                   # quorum: what comes too late: drop | stale (counts in the next round)
buffer = 10                     # buffered: pushes in one update
servers = 1                     # sync, async, buffered: the parameters are split over so many coordinators
arrival = "clock"               # async: whose push is next: clock | round_robin (the peers in turn)
delay = 0                       # async, round_robin: every push is so many versions old, for experiments
engine = "own"                  # ring: own | gloo | nccl (of torch.distributed)

[network]                       # the links of the simulator's events engine
latency_ms = 0.0                # how long a message takes from one peer to another
jitter_ms = 0.0                 # and up to so much more, drawn for each message
bandwidth_mbps = 0.0            # of each link, in 10^6 bits a second; messages wait for their turn; 0: no limit
node_mbps = 0.0                 # what all links of one machine share, each way; 0: no limit
loss = 0.0                      # chance that a message is lost; it is sent again after a while
duplicate = 0.0                 # chance that a message arrives twice
reorder = 0.0                   # chance that a message is overtaken by later ones
file = ""                       # CSV for links that differ: from, to, and of latency_ms, bandwidth_mbps, loss
                                # at least one

[speed]                         # how long local steps take in the events engine
step_s = 1.0                    # one local step
factors = []                    # how many times as long it takes each peer, such as [1, 1, 1, 4]
distribution = "constant"       # constant | lognormal (each step drawn anew, with step_s as the mean)
# sigma = 0.5                   # lognormal: the spread, of the logarithm
file = ""                       # a trace, CSV with the columns peer, step_s: a peer's lines are its steps in order

[faults]                        # what goes wrong in the events engine, and when
schedule = []                   # such as [{round = 20, kill = "peer-3"}, {at_s = 30, restart = "peer-3"}]
                                # when: round (so many are completed) | at_s
                                # to a peer, or a list: kill | restart | stop | continue | leave | join
                                # cut = ["peer-1", "peer-2"] | heal (such a pair, or true for everything)
                                # | partition = [["peer-0", "peer-1"], ["peer-2"]]
                                # for_s = 10: a kill, stop, cut or partition ends by itself
per_minute = 0.0                # as many random ones, in each simulated minute, from the seed

[transport]                     # used by up and start
listen = "auto"                 # where a peer binds: auto | "tcp://ADDRESS:PORT" | none (it only dials)
plane = "auto"                  # how data travel: auto | tcp
heartbeat_s = 0.5               # from one sign of life to the next
suspect_s = 3.0                 # a peer silent for so long is suspected
dead_s = 5.0                    # a peer silent for so long is lost
round_deadline_s = 0.0          # how long a round waits for the neighbours' messages, once a peer has sent its own;
                                # 0: until all that are alive are heard. The events engine has it too
join_s = 60.0                   # how long a neighbour that was never heard is awaited

[checkpoint]                    # a coordinator saves its parameters; started again, it goes on from there
every_rounds = 0                # after so many rounds, or updates; 0: after every one
keep = 3                        # how many of the newest are kept

[record]                        # what the summary holds
params = "none"                 # parameters of every peer, for small models: none | final | every
on_divergence = "stop"          # stop | continue

# [[peers]]                     # one for each peer, where they are on many machines or differ; and one for a
                                # coordinator
# name = "lab-3"
# address = "127.0.0.1:5555"        # what others dial; on the loopback, so far
# listen = "tcp://127.0.0.1:5555"   # where this one binds, if not at its address; "none": it only dials
# advertise = "127.0.0.1:5556"      # what others dial, if not the address
# position = [0.2, 0.7]             # for metric position; all peers have one, or none
# data = "npz:shard.npz"            # with partition = "own"
# device = "cuda:0"
"""


def starter_text() -> str:
    """The text of a starter experiment file: TOML that loads to the defaults, for 8 peers on a ring."""
    return _TEXT

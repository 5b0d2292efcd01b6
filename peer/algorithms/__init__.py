"""The maths of training together: one file per algorithm. torch only; no sockets, no clocks, no files."""

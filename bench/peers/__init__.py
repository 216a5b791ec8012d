"""This project beside what people use instead: one harness, one machine, one run. See ``bench/bench_peers.py``."""

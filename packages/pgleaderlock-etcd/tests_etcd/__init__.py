"""Tests of the etcd store, against real etcd servers."""

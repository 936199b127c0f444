"""Discrete-event model of a running mapping: queues, lanes, shared units, times that vary.

What the evaluator can not say: what finite queues, scattered stage times and contention do to the
throughput and to the latency of single frames."""

from __future__ import annotations

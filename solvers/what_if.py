"""What an optimum would gain: cheaper layers, more cores, more memory, each searched again.

Shows which layer or resource holds the answer back, and what a change there is worth."""

from __future__ import annotations

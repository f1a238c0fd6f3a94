"""For people who add ops: gradient checks, sample cases per op, hypothesis strategies."""

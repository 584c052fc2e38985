"""Plans over NVIDIA FLARE: a plan's run at the coordinator, and what answers at a party. The engine
itself is `cupola.engines.flare`."""

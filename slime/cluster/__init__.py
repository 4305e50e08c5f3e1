"""Ray: placement, actors, deadlines on every wait, and what must end when a run ends."""

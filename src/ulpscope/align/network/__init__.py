"""A network on a device beside its original: planned from the graph, paired with what was dumped."""

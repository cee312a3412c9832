"""Questions to two aligned runs, each answered by findings."""

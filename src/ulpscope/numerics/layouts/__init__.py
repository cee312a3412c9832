"""Orders in which a tensor's elements lie."""

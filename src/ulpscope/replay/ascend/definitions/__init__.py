"""What operators of an Ascend graph compute, by their types."""

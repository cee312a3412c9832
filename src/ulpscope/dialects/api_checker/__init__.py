"""Files of the first API accuracy checker: forward_info_*.json, backward_info_*.json, stack_info_*.json, real data."""

"""`ulpscope compare` of networks on Ascend devices, operator by operator."""

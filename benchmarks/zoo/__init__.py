"""The fault zoo: realistic models, realistic faults, and how often `ulpscope compare` names the right one."""

"""The first API accuracy checker's Python names: `import ulpscope.compat.api_accuracy_checker.dump` captures."""

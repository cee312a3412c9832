"""Watches a PyTorch run: function mode, module hooks, autograd node hooks, optimizer hooks."""

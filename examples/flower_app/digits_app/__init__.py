"""An ordinary Flower app: handwritten digits, a small net, its own training loop."""

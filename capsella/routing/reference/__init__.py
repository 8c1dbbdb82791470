"""Every routing in plain loops, line for line with its paper: the references of all other backends."""

def losses(slots, noise_multiplier, grid): raise NotImplementedError
def loss_deviation(slots, z): raise NotImplementedError
def largest_loss(slots, z): raise NotImplementedError
def allocation_divergences(slots, z, orders): raise NotImplementedError

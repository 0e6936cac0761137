"""One thread per process: two make small models several times slower, and results noisier."""

import torch

torch.set_num_threads(1)

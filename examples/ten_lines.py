import torch
from torch import nn

import holdfast as hf

network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))  # any module: (b, ...) to (b, d)
encoder = hf.Encoder(network, "mine", hf.Domain((1, 8, 8)))
images = torch.rand(50, 1, 8, 8)  # pixels in [0, 1]; no labels
run = hf.evaluate(encoder, images, only="breakaway", eps="8/255")
risk = run["breakaway"].estimate("breakaway_risk", attack="adaptive", divergence="l2")
print(f"breakaway risk {risk.value:.3f} [{risk.low:.3f}, {risk.high:.3f}], a {risk.claim}")

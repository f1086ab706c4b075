import torch
from torch import nn

from holdfast import Domain, Encoder, Images
from holdfast.evaluations.attacked.breakaway import Breakaway

network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))  # any module: (b, ...) to (b, d)
encoder = Encoder(network, "mine", Domain((1, 8, 8)))
images = Images(torch.rand(50, 1, 8, 8))  # pixels in [0, 1]; no labels
result = Breakaway()(encoder, images)
risk = result.estimate("breakaway_risk", ball="linf:0.1", attack="adaptive", divergence="l2")
print(f"breakaway risk {risk.value:.3f} [{risk.low:.3f}, {risk.high:.3f}], a {risk.claim}")

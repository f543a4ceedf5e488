"""Sound attentions that use what the contract offers beside heads: inputs, losses, buffers that learn, draws, depth."""

import torch
from torch import nn
from torch.nn import functional as F

from cab.attention import SINGLE_LAYER
from cab.training import ParamGroupOverride
from tests.cab.verification.planted.mutations import Method, Weighted, future, hide_padding


class Gated(Method):
    """Linear attention with a gate for each target and a strength for each key, from the layer's inputs."""

    autocast_dtypes = ()
    has_constant_size_state = True

    def set_up(self):
        self.requires_right_padding = True
        self.gate = nn.Linear(self.embed_dim, self.num_heads)
        self.strength = nn.Linear(self.embed_dim, self.num_heads)

    def query_side_inputs(self, query):
        return {"gate": self.gate(query).sigmoid().transpose(1, 2)}

    def key_side_inputs(self, key):
        return {"strength": self.strength(key).sigmoid().transpose(1, 2)}

    def weighted(self, key, strength, padding):
        weighted = (F.elu(key) + 1) * strength.unsqueeze(-1)
        return weighted if padding is None else weighted.masked_fill(padding[:, None, :, None], 0.0)

    def attend(self, query, key, value, padding, *, gate, strength):
        scores = (F.elu(query) + 1) @ self.weighted(key, strength, padding.key).mT
        if str(self.pattern) == "CS":
            scores = scores.masked_fill(future(query.shape[2]), 0.0)
        return gate.unsqueeze(-1) * (scores @ value) / scores.sum(-1, keepdim=True).clamp_min(1e-6)

    def reference(self, query, key, value, *, gate, strength):
        scores = (F.elu(query) + 1) @ ((F.elu(key) + 1) * strength.unsqueeze(-1)).mT
        if str(self.pattern) == "CS":
            scores = scores.tril()
        return gate.unsqueeze(-1) * (scores / scores.sum(-1, keepdim=True)) @ value

    def init_decode_state(self, batch_size, like):
        keys = like.new_zeros(batch_size, self.num_heads, self.head_dim)
        return {"sum": keys.unsqueeze(-1) * keys.unsqueeze(-2), "keys": keys}

    def decode(self, query, key, value, state, padding, *, gate, strength):
        q, k = F.elu(query) + 1, self.weighted(key, strength, padding.key)
        sums = state["sum"].unsqueeze(2) + (k.unsqueeze(-1) * value.unsqueeze(-2)).cumsum(2)
        keys = state["keys"].unsqueeze(2) + k.cumsum(2)
        output = torch.einsum("bhne,bhnef->bhnf", q, sums) / (q * keys).sum(-1, keepdim=True).clamp_min(1e-6)
        return gate.unsqueeze(-1) * output, {"sum": sums[:, :, -1], "keys": keys[:, :, -1]}

    def encode_source(self, key, value, padding, *, strength):
        k = self.weighted(key, strength, padding.key)
        return {"sum": k.mT @ value, "keys": k.sum(2)}

    def decode_cross(self, query, state, _padding, *, gate):
        q = F.elu(query) + 1
        return gate.unsqueeze(-1) * (q @ state["sum"]) / (q @ state["keys"].unsqueeze(-1)).clamp_min(1e-6), state


class Sharpened(Weighted):
    """A loss of its own: the entropy of each target's weights, and the size of a parameter."""

    def set_up(self):
        self.tau = nn.Parameter(torch.ones(self.num_heads, 1, 1))

    def param_group_overrides(self):
        return {"tau": ParamGroupOverride(learning_rate=1e-4, weight_decay=0.0)}

    def weights(self, query, key, padding):
        return super().weights(query * self.tau, key, padding)

    def entropy(self, weights):
        return -(weights * weights.clamp_min(1e-9).log()).sum(-1).mean(1)

    def attend(self, query, key, value, padding):
        weights = self.weights(query, key, padding)
        self.add_losses(weights, query, key, padding)
        return weights @ value

    def target_loss(self, weights, query, key, padding):  # noqa: ARG002
        return self.entropy(weights)

    def add_losses(self, weights, query, key, padding):
        self.add_loss(self.target_loss(weights, query, key, padding), padding)
        self.add_loss(self.tau.square().mean())

    reference = None


class Clustered(Weighted):
    """Keys and queries near the same centroids attend more; centroids follow the keys that fall to them."""

    centroids: torch.Tensor

    def set_up(self):
        self.register_buffer("centroids", torch.randn(self.num_heads, 4, self.head_dim))

    def membership(self, x):
        return (x @ self.centroids.mT).softmax(-1)

    def collected(self, key, padding):
        """Parts of real keys in each cluster, and their sums."""
        parts = self.membership(key)
        if padding.key is not None:
            parts = parts.masked_fill(padding.key[:, None, :, None], 0.0)
        return parts, (parts.mT @ key).sum(0)

    def attend(self, query, key, value, padding):
        parts, total = self.collected(key, padding)
        self.accumulate_statistics(total=total, count=parts.sum((0, 2)))
        logits = query @ key.mT * self.scale + self.membership(query) @ self.membership(key).mT
        return self.softmax(hide_padding(logits, padding.key)) @ value

    reference = None

    def update_buffers(self, *, total, count):
        self.centroids.lerp_(total / count.clamp_min(1e-6).unsqueeze(-1), 0.1)


class Deep(Weighted):
    def __init__(self, *, pattern, embed_dim, num_heads, dropout=0.0, layer_position=SINGLE_LAYER):
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.layer_position = layer_position

    def attend(self, query, key, value, padding):
        return super().attend(query / (1 + self.layer_position.index), key, value, padding)

    def reference(self, query, key, value):
        return super().reference(query / (1 + self.layer_position.index), key, value)

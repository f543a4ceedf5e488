"""Layers of the installed package transformers 5.23.0: ``python -m tools.golden.transformers [NAME...]``.

Each function ``make_NAME`` records a case; a maintainer adds one for an attention that the package has.
"""

from __future__ import annotations

from operator import attrgetter
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from tools.golden.record import FLOAT32, OURS, Recorder, main, pairs, put, save_start, sequence_first

SOURCE = "transformers 5.23.0, "
BERT = {"hidden_size": 16, "num_attention_heads": 2, "attention_probs_dropout_prob": 0.0}
QUERY_KEY_VALUE = "q_proj=query k_proj=key v_proj=value"
INDEXER = (
    "indexer.query.weight=wq_b.weight indexer.key.weight=wk.weight indexer.key_norm=k_norm "
    "indexer.weight.weight=weights_proj.weight"
)


def model(name: str) -> Any:
    return resolve_name(f"transformers.models.{name}.modeling_{name}")


def config(name: str, cls: str, **options: Any) -> Any:
    return resolve_name(f"transformers.models.{name}.{cls}")(**options)


def make_fnet() -> None:
    public = model("fnet").FNetBasicFourierTransform(config("fnet", "FNetConfig"))
    Recorder("fnet", "NS", 10, 1).save(SOURCE + "FNetBasicFourierTransform", public, 13)


def make_yoso_e() -> None:
    recorder = Recorder("yoso_e", "NS", hash_length=9).identity()
    settings = config("yoso", "YosoConfig", **BERT, use_expectation=True, conv_window=None)
    public = model("yoso").YosoSelfAttention(settings).eval()
    recorder.copy(public, QUERY_KEY_VALUE)
    run = lambda x: public(x, attention_mask=torch.zeros(x.shape[:2]))  # noqa: E731
    recorder.save(SOURCE + "YosoSelfAttention with use_expectation", run, 13)


def make_ssd() -> None:
    recorder = Recorder("ssd", "CS", state_size=6)
    sizes = {"hidden_size": 16, "num_heads": 2, "head_dim": 16, "state_size": 6, "n_groups": 1, "expand": 2}
    sizes |= {"conv_kernel": 4, "chunk_size": 8, "num_hidden_layers": 1}
    public = model("mamba2").Mamba2Mixer(config("mamba2", "Mamba2Config", **sizes, use_bias=False), 0).eval()
    parts = ("gate", "v", "k", "q", "step")
    recorder.copy(public, "+".join(f"{name}_proj.weight" for name in parts) + "=in_proj.weight")
    recorder.copy(public, "step_proj.bias=dt_bias log_rate=A_log skip=D norm_weight=norm.weight out_proj")
    convolutions = [recorder.ours.convolutions[name] for name in ("value", "key", "query")]
    put(public.conv1d.weight, torch.cat([x.weight.squeeze(2).flatten(1).mT for x in convolutions]))
    put(public.conv1d.bias, torch.cat([x.bias.flatten() for x in convolutions]))
    recorder.save(SOURCE + "Mamba2Mixer", public, 17)


def make_start_of_mlstm() -> None:
    settings = config("xlstm", "xLSTMConfig", hidden_size=64, num_heads=4, num_hidden_layers=1, vocab_size=8)
    public = model("xlstm").xLSTMModel(settings).blocks[0].mlstm_layer
    gates = {"input_proj": public.igate_preact, "forget_proj": public.fgate_preact}
    parts = [(f"{name}.{part}", getattr(gate, part)) for name, gate in gates.items() for part in ("weight", "bias")]
    start = {name: [weights] * 32 for name, weights in parts}  # constants, as often as others are drawn
    save_start(SOURCE + "xLSTMModel", "mlstm", "CS", 64, 4, statistics=start)


def make_mla() -> None:
    recorder = Recorder("mla", "CS", kv_rank=6, rotary_dim=4)
    save_mla(recorder, "mla", "deepseek_v3", "DeepseekV3", "DeepseekV3Attention without a query rank", q_lora_rank=None)


def make_mla_indexed() -> None:
    index = {"top_k": 4, "index_heads": 16, "index_dim": 8}
    recorder = Recorder("mla", "CS", kv_rank=6, rotary_dim=4, query_rank=5, **index)
    sizes = {"q_lora_rank": 5, "index_topk": 4, "index_n_heads": 16, "index_head_dim": 8}
    save_mla(recorder, "mla_indexed", "deepseek_v32", "DeepseekV32", "DeepseekV32Attention", **sizes)


def save_mla(recorder: Recorder, case: str, name: str, prefix: str, source: str, **sizes: Any) -> None:
    ours: Any = recorder.ours
    sizes |= {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 6}
    sizes |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_hidden_layers": 1}
    settings = config(name, f"{prefix}Config", attn_implementation="eager", **sizes)
    public = getattr(model(name), f"{prefix}Attention")(settings, 0).eval()
    queries = torch.cat([ours.q_proj.weight.unflatten(0, (2, 8)), ours.q_rotary.weight.unflatten(0, (2, 4))], dim=1)
    if ours.indexer is None:
        put(public.q_proj.weight, queries)
    else:
        put(public.q_b_proj.weight, queries)
        recorder.copy(public, "q_down.weight=q_a_proj.weight q_norm.weight=q_a_layernorm.weight")
        recorder.copy(public.indexer, INDEXER)
    recorder.copy(public, "down.weight+k_rotary.weight=kv_a_proj_with_mqa.weight")
    recorder.copy(public, "norm.weight=kv_a_layernorm.weight out_proj=o_proj")
    up = torch.cat([ours.k_proj.weight.unflatten(0, (2, 8)), ours.v_proj.weight.unflatten(0, (2, 8))], dim=1)
    put(public.kv_b_proj.weight, up)
    rotary = getattr(model(name), f"{prefix}RotaryEmbedding")(settings)

    def run(x: Tensor) -> Any:
        place = torch.arange(x.shape[1]).unsqueeze(0)
        later = torch.full((len(x), 1, x.shape[1], x.shape[1]), -1e30).triu(1)
        return public(x, rotary(x, place), later)

    recorder.save(SOURCE + source, run, 13 if ours.indexer is None else 19, case=case)


def make_bigbird() -> None:
    recorder = Recorder("bigbird", "NS", block_size=4, num_random=2).identity()
    sizes = {"num_random_blocks": 2, "block_size": 4, "max_position_embeddings": 48}
    module = model("big_bird")
    public = module.BigBirdBlockSparseAttention(config("big_bird", "BigBirdConfig", **BERT, **sizes), seed=0)
    recorder.copy(public, QUERY_KEY_VALUE)
    torch.set_default_dtype(FLOAT32)  # on which the drawn numbers depend
    drawn = recorder.ours.random_blocks(12)
    torch.set_default_dtype(torch.float64)
    rows = [table[1:-1].sort(dim=-1).values.numpy() for table in drawn]
    public._bigbird_block_rand_mask_with_head = lambda *_, **__: rows

    def run(x: Tensor) -> Any:
        public.train()
        count = iter(rows)
        public._bigbird_block_rand_mask = lambda *_, **__: next(count)
        blocked, *masks = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(x.shape[:2]), 4)
        return public(x, *masks, blocked, blocked)

    source = SOURCE + "BigBirdBlockSparseAttention in training"
    recorder.save(source, run, 48, batch=1, reason="given our table of random blocks")


def make_longformer() -> None:
    recorder = Recorder("longformer", "NS", window=3, num_globals=2).identity()
    settings = config("longformer", "LongformerConfig", **BERT, attention_window=[6], num_hidden_layers=1)
    public = model("longformer").LongformerSelfAttention(settings, 0).eval()
    recorder.copy(public, QUERY_KEY_VALUE)
    recorder.copy(public, "global_q_proj=query_global global_k_proj=key_global global_v_proj=value_global")

    def run(x: Tensor) -> Any:
        marks = torch.zeros(x.shape[:2])
        marks[:, :2] = 10000.0
        masks = {"attention_mask": marks, "is_index_masked": marks < 0, "is_index_global_attn": marks > 0}
        return public(x, **masks, is_global_attn=True)

    recorder.save(SOURCE + "LongformerSelfAttention", run, 24, batch=1)


def make_sink() -> None:
    recorder = Recorder("vanilla", "CS", 16, 4, num_kv_heads=2, sink="learned")
    ours = recorder.ours
    attention = model("gpt_oss").eager_attention_forward

    def run(x: Tensor) -> Tensor:
        q = ours.q_proj(x).unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = (linear(x).unflatten(-1, (2, 4)).transpose(1, 2) for linear in (ours.k_proj, ours.v_proj))
        holder = nn.Module()
        holder.num_key_value_groups, holder.sinks, holder.training = 2, ours.sink_logit, False
        later = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)
        return ours.out_proj(attention(holder, q, k, v, later, 0.5)[0].flatten(2))

    source = SOURCE + "eager_attention_forward of gpt-oss"
    recorder.save(source, run, 11, reason=OURS, case="vanilla_sinks")


def make_funnel() -> None:
    recorder = Recorder("funnel", "NS")
    options = {"d_model": 16, "n_head": 2, "d_head": 8, "block_sizes": [1, 1], "hidden_dropout": 0.0}
    options |= {"attention_dropout": 0.0, "truncate_seq": False, "attention_type": "relative_shift"}
    settings, module = config("funnel", "FunnelConfig", **options), model("funnel")
    public = module.FunnelRelMultiheadAttention(settings, 1).eval()
    public.layer_norm = nn.Identity()
    structure = module.FunnelAttentionStructure(settings)
    recorder.copy(public, "q_proj=q_head k_proj=k_head v_proj=v_head out_proj=post_proj")
    recorder.copy(public, "content_bias=r_w_bias position_bias=r_r_bias position_proj.weight.mT=r_kernel")

    def run(x: Tensor) -> Tensor:
        inputs = structure.init_attention_inputs(x)
        pooled, inputs = structure.pre_attention_pooling(x, inputs)
        output = public(pooled, x, x, inputs)[0] - pooled
        rest = output[:, 1:].repeat_interleave(2, dim=1)
        return torch.cat([output[:, :1], rest], dim=1)[:, : x.shape[1]]

    reason = "without residual and norm; its output repeated for the tokens of a group"
    recorder.save(SOURCE + "FunnelRelMultiheadAttention of a pooling block", run, 23, reason=reason)


def make_xlnet() -> None:
    recorder = Recorder("transformer_xl", "NS")
    settings = config("xlnet", "XLNetConfig", d_model=16, n_head=2, d_inner=16, n_layer=1, dropout=0.0)
    module = model("xlnet")
    public = module.XLNetRelativeAttention(settings).double().eval()
    recorder.copy(public, "q_proj.weight.mT=q k_proj.weight.mT=k v_proj.weight.mT=v position_proj.weight.mT=r")
    recorder.copy(public, "out_proj.weight=o content_bias=r_w_bias position_bias=r_r_bias")
    public.layer_norm = nn.Identity()
    network = module.XLNetModel(settings)

    def run(h: Tensor) -> Tensor:
        positions = network.relative_positional_encoding(len(h), len(h), bsz=h.shape[1])
        return public(h, None, None, None, positions, None)[0] - h

    source = SOURCE + "XLNetRelativeAttention without residual and norm"
    recorder.save(source, sequence_first(run), 13, case="transformer_xl_ns")


def make_dsa() -> None:
    """Record the choice of the public indexer; its layer is an ``mla`` with a query rank, so the heads are ours."""
    recorder = Recorder("dsa", "CS", top_k=4, index_heads=16, index_dim=8, positions="rope")
    sizes = {"index_topk": 4, "index_n_heads": 16, "index_head_dim": 8, "qk_rope_head_dim": 8}
    settings = config("deepseek_v32", "DeepseekV32Config", hidden_size=16, q_lora_rank=16, **sizes)
    module = model("deepseek_v32")
    indexer = module.DeepseekV32Indexer(settings, 0)
    recorder.copy(indexer, INDEXER)

    def run(x: Tensor) -> Tensor:
        tables, later = rotary(x.shape[1], 8), torch.full((x.shape[1],) * 2, -torch.inf).triu(1)
        taken = indexer(x, x, tables, later.expand(len(x), -1, -1), None).long()
        mask = torch.full((len(x), *later.shape), -torch.inf).scatter(-1, taken, 0.0) + later

        def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = module.apply_rotary_pos_emb(q, k, *tables)
            return (q @ k.mT * 8**-0.5 + mask.unsqueeze(1)).softmax(dim=-1) @ v

        return recorder.around(core)(x)

    reason = "projections and softmax attention are torch's"
    recorder.save(SOURCE + "DeepseekV32Indexer", run, 19, reason=reason)


SCORED = {"num_kv_heads": 2, "index_dim": 4, "positions": "rope", "qk_norm": True}
"""Our options of the two layers with blocks that a second, smaller attention scores."""
BLOCKS = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 1}


def make_msa() -> None:
    for file, sizes in (("dsa_msa", (4, 3, 1)), ("dsa_msa_no_local", (3, 2, 0))):
        options = dict(zip(("block_size", "top_k", "local_blocks"), sizes, strict=True))
        recorder = Recorder("dsa", "CS", 16, 4, scorer="msa", **SCORED, **options)
        name, index = "minimax_m3_vl", ("index_block_size", "index_topk_blocks", "index_local_blocks")
        theirs = {"rotary_dim": 4, "index_n_heads": 2, "index_head_dim": 4, "layer_types": ["minimax_m3_sparse"]}
        theirs |= dict(zip(index, sizes, strict=True))
        settings = config(name, "MiniMaxM3VLTextConfig", **BLOCKS, **theirs, attn_implementation="sdpa")
        public = model(name).MiniMaxM3VLAttention(settings, 0).eval()
        recorder.copy(public, "q_proj k_proj v_proj out_proj=o_proj")
        recorder.copy(public.indexer, "indexer.query.weight=q_proj.weight indexer.key.weight=k_proj.weight")
        put_norms(recorder, public, "q_norm k_norm indexer.query_norm=indexer.q_norm indexer.key_norm=indexer.k_norm")

        def run(x: Tensor, public: nn.Module = public) -> Any:
            return public(x, rotary(x.shape[1], 4), None, position_ids=torch.arange(x.shape[1])[None])

        recorder.save(SOURCE + "MiniMaxM3VLAttention", run, 19, case=file)


def make_qsa() -> None:
    sizes = {"block_size": 3, "top_k": 2, "index_heads": 16, "output_gate": True}
    recorder = Recorder("dsa", "CS", 16, 4, scorer="qsa", **SCORED, **sizes)
    ours, name = recorder.without_biases("q_proj").ours, "qwen4_exp"
    theirs = {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 4, "indexer_budget": 6}
    theirs |= {"indexer_compress_ratio": 3, "layer_types": ["indexed_attention"], "attn_implementation": "sdpa"}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    settings = config(name, "Qwen4ExpTextConfig", **BLOCKS, **theirs, rope_parameters=rope)
    public = model(name).Qwen4ExpTextAttention(settings, 0).eval()
    recorder.copy(public, "k_proj v_proj out_proj=o_proj")
    both = [x.unflatten(0, (4, 4)) for x in (ours.q_proj.weight, ours.output_gate.weight)]
    put(public.q_proj.weight, torch.cat(both, dim=1))
    recorder.copy(public, "indexer.query.weight+indexer.key.weight=indexer.index_qk_proj.weight")
    norms = "q_norm k_norm indexer.query_norm=indexer.q_layernorm indexer.key_norm=indexer.k_layernorm"
    put_norms(recorder, public, norms)

    def run(x: Tensor) -> Any:
        earlier = torch.ones(len(x), 1, x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return public(x, [table.expand(len(x), -1, -1) for table in rotary(x.shape[1], 4)], earlier)

    recorder.save(SOURCE + "Qwen4ExpTextAttention", run, 19, case="dsa_qsa")


def put_norms(recorder: Recorder, public: nn.Module, names: str) -> None:
    """Copy norms of queries and keys, ours=theirs, which the public code stores as the difference from 1."""
    for ours, theirs in pairs(names):
        put(attrgetter(theirs)(public).weight, attrgetter(ours)(recorder.ours).weight - 1.0)


def rotary(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [1, length, width] of the usual frequencies."""
    angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    both = torch.cat([angle, angle], dim=-1)[None]
    return both.cos(), both.sin()


if __name__ == "__main__":
    main(globals())

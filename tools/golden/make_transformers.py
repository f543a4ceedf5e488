"""Layers of transformers 5.23.0, an installed package: ``python -m tools.golden.make_transformers``."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from tools.golden.record import FLOAT32, Recorder, put, record_all, save_start

SOURCE = "transformers 5.23.0, "


def model(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def config(name: str, cls: str, **options: Any) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{name}"), cls)(**options)


def make_fnet() -> None:
    recorder = Recorder("fnet", "NS", 10, 1)
    public = model("fnet").FNetBasicFourierTransform(config("fnet", "FNetConfig"))
    source = SOURCE + "FNetBasicFourierTransform"
    recorder.save("fnet", source, lambda x: public(x)[0], recorder.inputs(13))


def make_yoso_e() -> None:
    recorder = Recorder("yoso_e", "NS", 16, 2, hash_length=9)
    recorder.identity()
    settings = config(
        "yoso",
        "YosoConfig",
        hidden_size=16,
        num_attention_heads=2,
        use_expectation=True,
        conv_window=None,
        attention_probs_dropout_prob=0.0,
    )
    public = model("yoso").YosoSelfAttention(settings).eval()
    recorder.linears(q_proj=public.query, k_proj=public.key, v_proj=public.value)
    recorder.save(
        "yoso_e",
        SOURCE + "YosoSelfAttention with use_expectation",
        lambda x: public(x, attention_mask=torch.zeros(x.shape[:2]))[0],
        recorder.inputs(13),
    )


def make_ssd() -> None:
    recorder = Recorder("ssd", "CS", 16, 2, state_size=6)
    ours = recorder.ours
    settings = config(
        "mamba2",
        "Mamba2Config",
        hidden_size=16,
        num_heads=2,
        head_dim=16,
        state_size=6,
        n_groups=1,
        expand=2,
        conv_kernel=4,
        chunk_size=8,
        num_hidden_layers=1,
        use_bias=False,
    )
    public = model("mamba2").Mamba2Mixer(settings, 0).eval()
    parts = (ours.gate_proj, ours.v_proj, ours.k_proj, ours.q_proj, ours.step_proj)
    put(public.in_proj.weight, torch.cat([linear.weight for linear in parts]))
    put(public.dt_bias, ours.step_proj.bias)
    put(public.A_log, ours.log_rate)
    put(public.D, ours.skip)
    put(public.norm.weight, ours.norm_weight)
    convolutions = [ours.convolutions[name] for name in ("value", "key", "query")]
    put(public.conv1d.weight, torch.cat([x.weight.squeeze(2).flatten(1).mT for x in convolutions]))
    put(public.conv1d.bias, torch.cat([x.bias.flatten() for x in convolutions]))
    recorder.linears(out_proj=public.out_proj)

    def run(x: Tensor) -> Tensor:
        output = public(x)
        return output[0] if isinstance(output, tuple) else output

    recorder.save("ssd", SOURCE + "Mamba2Mixer", run, recorder.inputs(17))


def make_start_of_mlstm() -> None:
    settings = config("xlstm", "xLSTMConfig", hidden_size=64, num_heads=4, num_hidden_layers=1, vocab_size=8)
    public = model("xlstm").xLSTMModel(settings).blocks[0].mlstm_layer
    gates = {"input_proj": public.igate_preact, "forget_proj": public.fgate_preact}
    start = {
        f"{name}.{part}": [getattr(gate, part)] * 32 for name, gate in gates.items() for part in ("weight", "bias")
    }
    save_start("mlstm_start", SOURCE + "xLSTMModel", "mlstm", "CS", 64, 4, start)


def make_mla() -> None:
    recorder = Recorder("mla", "CS", 16, 2, kv_rank=6, rotary_dim=4)
    ours = recorder.ours
    settings = config(
        "deepseek_v3",
        "DeepseekV3Config",
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        q_lora_rank=None,
        kv_lora_rank=6,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        rope_interleave=True,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    module = model("deepseek_v3")
    public = module.DeepseekV3Attention(settings, 0).eval()
    queries = torch.cat([ours.q_proj.weight.unflatten(0, (2, 8)), ours.q_rotary.weight.unflatten(0, (2, 4))], dim=1)
    put(public.q_proj.weight, queries)
    put(public.kv_a_proj_with_mqa.weight, torch.cat([ours.down.weight, ours.k_rotary.weight]))
    put(public.kv_a_layernorm.weight, ours.norm.weight)
    up = torch.cat([ours.k_proj.weight.unflatten(0, (2, 8)), ours.v_proj.weight.unflatten(0, (2, 8))], dim=1)
    put(public.kv_b_proj.weight, up)
    recorder.linears(out_proj=public.o_proj)
    rotary = module.DeepseekV3RotaryEmbedding(settings)

    def run(x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1]).unsqueeze(0)
        later = torch.full((x.shape[1],) * 2, -1e30).triu(1)[None, None]
        return public(x, rotary(x, place), later)[0]

    recorder.save("mla", SOURCE + "DeepseekV3Attention without a query rank", run, recorder.inputs(13))


def make_bigbird() -> None:
    recorder = Recorder("bigbird", "NS", 16, 2, block_size=4, num_random=2)
    recorder.identity()
    settings = config(
        "big_bird",
        "BigBirdConfig",
        hidden_size=16,
        num_attention_heads=2,
        num_random_blocks=2,
        block_size=4,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=48,
    )
    module = model("big_bird")
    public = module.BigBirdBlockSparseAttention(settings, seed=0)
    recorder.linears(q_proj=public.query, k_proj=public.key, v_proj=public.value)
    torch.set_default_dtype(FLOAT32)  # on which the drawn numbers depend
    drawn = recorder.ours.random_blocks(12)
    torch.set_default_dtype(torch.float64)
    rows = [table[1:-1].sort(dim=-1).values.numpy() for table in drawn]
    public._bigbird_block_rand_mask = lambda *_, **__: None
    public._bigbird_block_rand_mask_with_head = lambda *_, **__: rows

    def run(x: Tensor) -> Tensor:
        public.train()
        count = iter(rows)
        public._bigbird_block_rand_mask = lambda *_, **__: next(count)
        masks = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(x.shape[:2]), 4)
        blocked, band, source, target = masks
        return public(x, band, source, target, blocked, blocked)[0]

    recorder.save(
        "bigbird",
        SOURCE + "BigBirdBlockSparseAttention in training",
        run,
        recorder.inputs(48, batch=1),
        reason="given our table of random blocks",
    )


def make_longformer() -> None:
    recorder = Recorder("longformer", "NS", 16, 2, window=3, num_globals=2)
    recorder.identity()
    settings = config(
        "longformer",
        "LongformerConfig",
        hidden_size=16,
        num_attention_heads=2,
        attention_window=[6],
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    public = model("longformer").LongformerSelfAttention(settings, 0).eval()
    recorder.linears(q_proj=public.query, k_proj=public.key, v_proj=public.value)
    recorder.linears(
        global_q_proj=public.query_global, global_k_proj=public.key_global, global_v_proj=public.value_global
    )

    def run(x: Tensor) -> Tensor:
        marks = torch.zeros(x.shape[:2])
        marks[:, :2] = 10000.0
        return public(
            x,
            attention_mask=marks,
            is_index_masked=marks < 0,
            is_index_global_attn=marks > 0,
            is_global_attn=True,
        )[0]

    recorder.save("longformer", SOURCE + "LongformerSelfAttention", run, recorder.inputs(24, batch=1))


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
    recorder.save("vanilla_sinks", source, run, recorder.inputs(11), reason="projections are torch's")


def make_funnel() -> None:
    recorder = Recorder("funnel", "NS", 16, 2)
    recorder.without_biases("q_proj")
    ours = recorder.ours
    settings = config(
        "funnel",
        "FunnelConfig",
        d_model=16,
        n_head=2,
        d_head=8,
        block_sizes=[1, 1],
        hidden_dropout=0.0,
        attention_dropout=0.0,
        truncate_seq=False,
        attention_type="relative_shift",
    )
    module = model("funnel")
    public = module.FunnelRelMultiheadAttention(settings, 1).eval()
    public.layer_norm = nn.Identity()
    structure = module.FunnelAttentionStructure(settings)
    recorder.linears(q_proj=public.q_head, k_proj=public.k_head, v_proj=public.v_head, out_proj=public.post_proj)
    put(public.r_w_bias, ours.content_bias)
    put(public.r_r_bias, ours.position_bias)
    put(public.r_kernel, ours.position_proj.weight.mT)

    def run(x: Tensor) -> Tensor:
        inputs = structure.init_attention_inputs(x)
        pooled, inputs = structure.pre_attention_pooling(x, inputs)
        output = public(pooled, x, x, inputs)[0] - pooled
        rest = output[:, 1:].repeat_interleave(2, dim=1)
        return torch.cat([output[:, :1], rest], dim=1)[:, : x.shape[1]]

    recorder.save(
        "funnel",
        SOURCE + "FunnelRelMultiheadAttention of a pooling block",
        run,
        recorder.inputs(23),
        reason="without residual and norm; its output repeated for the tokens of a group",
    )


def make_xlnet() -> None:
    recorder = Recorder("transformer_xl", "NS", 16, 2)
    ours = recorder.ours
    settings = config("xlnet", "XLNetConfig", d_model=16, n_head=2, d_inner=16, n_layer=1, dropout=0.0)
    module = model("xlnet")
    public = module.XLNetRelativeAttention(settings).double().eval()
    with torch.no_grad():
        for name, own in (("q", ours.q_proj), ("k", ours.k_proj), ("v", ours.v_proj), ("r", ours.position_proj)):
            put(getattr(public, name), own.weight.mT)
        put(public.o, ours.out_proj.weight)
        put(public.r_w_bias, ours.content_bias)
        put(public.r_r_bias, ours.position_bias)
    public.layer_norm = nn.Identity()
    network = module.XLNetModel(settings)

    def run(x: Tensor) -> Tensor:
        length = x.shape[1]
        positions = network.relative_positional_encoding(length, length, bsz=len(x))
        h = x.transpose(0, 1)
        output = public(h, None, None, None, positions, None)[0]
        return (output - h).transpose(0, 1)

    source = SOURCE + "XLNetRelativeAttention without residual and norm"
    recorder.save("transformer_xl_ns", source, run, recorder.inputs(13))


if __name__ == "__main__":
    record_all(globals())

"""One file a model family: HF config -> Megatron config, HF names <-> Megatron names."""

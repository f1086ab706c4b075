"""Encoder adapters: each file turns one kind of reference (`timm:`, `onnx:` ...) into an Encoder."""

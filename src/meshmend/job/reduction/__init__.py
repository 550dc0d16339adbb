"""How gradients are added: float32, bf16 on the wire, exact."""

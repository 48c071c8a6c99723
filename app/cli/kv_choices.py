"""Types a context can be kept in, as the commands offer them; spelled out because --help must import nothing."""

KV_CHOICES = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")

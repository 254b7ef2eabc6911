"""Models: what they are made of, how they are read, and what reads their text.

`llama` is the model in NumPy and loads any Llama (`load_model`), `llama_torch` the same in PyTorch;
`rope` places tokens. `checkpoint` and `gguf` read weights, `tokenizer` and `chat` make ids of text,
`lora` adapts, `protocols` says what the rest of the library may ask of a model and its cache.
`evaluation` says how well a model predicts, `inspection` looks inside, `streaming` drops what is
old from its cache. `smollm2` is the book's real model in a chapter, `threads` sets how many a pass
takes.
"""

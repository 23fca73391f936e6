"""transformers imports these names; packed input never calls them."""


def pad_input(*args, **kwargs):
    raise NotImplementedError


def unpad_input(*args, **kwargs):
    raise NotImplementedError

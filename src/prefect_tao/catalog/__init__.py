"""Data: platforms, credentials, images, models and their actions; its loader; the reader of a TAO skill bank."""

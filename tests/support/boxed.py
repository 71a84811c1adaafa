"""This machine as a platform with containers: the driver is real, and an image must be confirmed where there is one."""

PLATFORMS = """
platforms:
  process:
    title: This machine
    description: Processes that have an image by name.
    block: tao-process
    storage: {scheme: file, uri: "file://{absolute_path}"}
    remote: false
"""
MODEL = """
title: Boxed
arch: boxed
container_image: registry.example/team/boxed:1
hardware: {min_gpus: 0}
actions:
  train:
    command: echo trained
    mode: args
    outputs: {}
"""

"""Profiles of programs that use gsparse: where the seconds go.

Read the files in this order:

1. `recording`: the hook that operations call, its decorators, and the spans that it records. `names` finds the calling
   line of the user's program, and the names of blocks that work on a device.
2. `profile`: the user's interface, and the profile's text. `rows` adds spans up.
"""

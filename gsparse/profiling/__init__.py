"""Profiles of programs that use gsparse: which operations take how many seconds.

Read the files in this order:

1. `recording`: the hook that operations call, its decorators, and the spans (operations with begin and end) that it
   records. `names` finds the line of the user's program that called an operation, and the name of the operation.
2. `profile`: the user's interface, and the text of a profile. `rows` adds up the spans of each row of the table.
"""

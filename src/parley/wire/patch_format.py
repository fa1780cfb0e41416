"""The description of the patch format for the model."""

from __future__ import annotations

from typing import Final

__all__ = ["PATCH_FORMAT"]

PATCH_FORMAT: Final = """\
A patch is text of this form:

*** Begin Patch
*** Add File: docs/greeting.md
+# Greeting
+Say hello.
*** Update File: src/app.py
*** Move to: src/main.py
@@ def greet(name):
     if not name:
-        return "Hi"
+        return "Hello"
     return f"Hello {name}"
*** Delete File: old.txt
*** End Patch

- The first and the last line are always *** Begin Patch and *** End Patch. Between them there is one section for \
each file: Add File, Update File or Delete File with its path, relative to the working directory.
- Add File is followed by all lines of the new file, each with + before it. The file must not exist yet.
- Delete File is followed by nothing.
- Update File is followed by chunks, in the order of the file. *** Move to: PATH as its first line renames it.
- In a chunk every line begins with a mark: a space for an unchanged line, - for a removed line, \
+ for an added line. An unchanged empty line is a line with one space. There are no line numbers.
- Unchanged and removed lines must match the file exactly and contiguously, after the previous chunk. \
Give about three unchanged lines before and after each change, so that the position is found.
- If these lines occur more than once, begin the chunk with @@ and a line that is somewhere above them, \
such as that of the class or function. Every chunk but the first begins with @@, alone or with such a line.
- *** End of File after the last line of a chunk means that the file ends there. A chunk of + lines alone is added \
at the end of the file."""

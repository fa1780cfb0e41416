"""The description of the patch format that models are given."""

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

- The first and the last line are always *** Begin Patch and *** End Patch. Between them stands a section for \
each file: Add File, Update File or Delete File with its path, relative to the working directory.
- Add File is followed by all lines of the new file, each with + in front. The file must not exist yet.
- Delete File is followed by nothing.
- Update File is followed by chunks, in the order of the file. *** Move to: PATH as its first line renames it.
- In a chunk every line begins with one character more: a space for a line that stays, - for one that goes, \
+ for one that comes. An unchanged empty line is a line with one space. No line numbers.
- Lines that stay or go must stand in the file just so, next to each other, behind those of the chunk before. \
Give about three unchanged lines before and after each change, so that the place is found.
- Where these lines occur more than once, begin the chunk with @@ and a line that stands somewhere above, \
such as that of the class or function. Every chunk but the first begins with @@, alone or with such a line.
- *** End of File behind the last line of a chunk says that the file ends there. A chunk of + lines alone is put \
at the end of the file."""

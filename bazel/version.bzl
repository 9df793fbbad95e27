"""Stops a Bazel that cannot build epd with one sentence, before it fails on a stack of other things."""

def bazel_version():
    """Returns "4.2.3" or the like; "" for Debian's build, which does not say, and where nobody is told.

    Only what WORKSPACE loads is told. Bazel 8 does not read WORKSPACE, but it and those before it know what 4.2 does not.
    """
    return getattr(native, "bazel_version", "6 or newer" if hasattr(native, "module_name") else "")

def wrong_bazel(version):
    """Returns what to say to a Bazel of this version; None if it builds epd."""
    if version == "" or version.startswith("4.2."):
        return None
    return ("epd is built with Bazel 4.2.3, and this is Bazel " + version +
            ": install Debian 12's (apt-get install bazel-bootstrap; deploy/setup does), and run /usr/bin/bazel")

def check_bazel():
    """Fails for another Bazel. Called by WORKSPACE, and by cc.bzl, which nearly every package loads."""
    wrong = wrong_bazel(bazel_version())
    if wrong:
        fail(wrong)

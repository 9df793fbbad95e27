"""Protocol buffer rules on Debian's protoc: C++ messages, gRPC services, descriptor sets, Python modules.

A .proto is imported by its path from the repository root ("proto/epd/v1/node.proto"), and its generated header is
included the same way ("proto/epd/v1/node.pb.h").
"""

_PROTOC = "protoc --proto_path=. "

# Generated code is not ours to fix: no -Werror, and no warnings printed.
_GENERATED_COPTS = ["-w"]

def _sources(name):
    return name + "_proto_sources"

def _dep_sources(deps):
    return [_sources(dep) if ":" in dep else dep + ":" + _sources(dep.split("/")[-1]) for dep in deps]

def _stem(src):
    if not src.endswith(".proto"):
        fail("src must be a .proto file of this package, got " + src)
    return src[:-len(".proto")]

def epd_proto_library(name, src, deps = [], visibility = None):
    """Messages of one .proto file as a cc_library.

    Args:
      name: of the library.
      src: the .proto file.
      deps: epd_proto_library targets whose files it imports (Google's well-known types need none).
      visibility: as usual.
    """
    stem = _stem(src)
    native.filegroup(
        name = _sources(name),
        srcs = [src] + _dep_sources(deps),
        visibility = ["//visibility:public"],
    )
    native.genrule(
        name = name + "_cc_gen",
        srcs = [_sources(name)],
        outs = [stem + ".pb.h", stem + ".pb.cc"],
        cmd = _PROTOC + "--cpp_out=$(GENDIR) " + native.package_name() + "/" + src,
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        hdrs = [stem + ".pb.h"],
        copts = _GENERATED_COPTS,
        visibility = visibility,
        deps = deps + ["//bazel/third_party:protobuf"],
    )

def epd_grpc_library(name, src, deps, visibility = None):
    """gRPC service classes of one .proto file as a cc_library.

    Args:
      name: of the library.
      src: the .proto file.
      deps: the epd_proto_library of `src` first, then those of the files it imports.
      visibility: as usual.
    """
    stem = _stem(src)
    native.genrule(
        name = name + "_gen",
        srcs = _dep_sources(deps),
        outs = [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"],
        cmd = _PROTOC + "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR) " +
              native.package_name() + "/" + src,
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".grpc.pb.cc"],
        hdrs = [stem + ".grpc.pb.h"],
        copts = _GENERATED_COPTS,
        visibility = visibility,
        deps = deps + ["//bazel/third_party:grpc"],
    )

def epd_descriptor_set(name, srcs, visibility = None):
    """`<name>.binpb`, a FileDescriptorSet of `srcs` with everything they import.

    Args:
      name: of the target.
      srcs: .proto files of this package; together they hold all non-Google imports.
      visibility: as usual.
    """
    native.genrule(
        name = name,
        srcs = srcs,
        outs = [name + ".binpb"],
        cmd = _PROTOC + "--include_imports --descriptor_set_out=$@ $(SRCS)",
        visibility = visibility,
    )

def epd_py_proto(name, srcs, visibility = None):
    """Python modules of `srcs`: "proto/epd/v1/node.proto" becomes proto/epd/v1/node_pb2.py.

    They hold messages and service descriptors. A caller of a service needs no generated stub: grpc's generic
    `channel.unary_unary("/epd.v1.Node/Status", ...)` takes the message classes.

    Args:
      name: of the target.
      srcs: .proto files of this package; together they hold all non-Google imports.
      visibility: as usual.
    """
    native.genrule(
        name = name,
        srcs = srcs,
        outs = [_stem(src) + "_pb2.py" for src in srcs],
        cmd = _PROTOC + "--python_out=$(GENDIR) $(SRCS)",
        visibility = visibility,
    )

def epd_nanopb_library(name, src, options, deps = [], visibility = None):
    """Messages of one .proto file as plain structs that nanopb reads and writes: "client/c/attach.nanopb.h".

    Args:
      name: of the library.
      src: label of the .proto file; it imports nothing but Google's duration.proto.
      options: nanopb's options file.
      deps: what declares the types that the options name.
      visibility: as usual.
    """
    proto = src.split(":")[-1]
    stems = [_stem(proto) + ".nanopb", "google/protobuf/duration.nanopb"]
    native.genrule(
        name = name + "_gen",
        srcs = [src, options],
        outs = [stem + end for stem in stems for end in [".h", ".cc"]],
        cmd = (
            "nanopb_generator.py --quiet --extension=.nanopb --source-extension=.cc --cpp-descriptors " +
            "-f $(location {options}) -I $$(dirname $(location {src})) -I /usr/include -D $(RULEDIR) " +
            "--generated-include-format='#include \"{package}/%s\"' {proto} google/protobuf/duration.proto && " +
            # The initializers that nanopb leaves to its users. Classes have constructors.
            "sed -i -E '/std::/!s/^(    [a-zA-Z_][a-zA-Z0-9_:]* [a-z_0-9]+);/\\1 = {{}};/' $(RULEDIR)/{proto_header} " +
            "$(RULEDIR)/google/protobuf/duration.nanopb.h"
        ).format(
            options = options,
            package = native.package_name(),
            proto = proto,
            proto_header = stems[0] + ".h",
            src = src,
        ),
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".cc" for stem in stems],
        hdrs = [stem + ".h" for stem in stems],
        copts = _GENERATED_COPTS + ["-fvisibility=hidden"],
        visibility = visibility,
        deps = deps + ["//bazel/third_party:nanopb"],
    )

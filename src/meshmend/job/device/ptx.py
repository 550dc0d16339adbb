"""The kernels that add up slices, in the assembly language that every NVIDIA driver compiles when it loads it.

So a sum needs neither a CUDA compiler nor a framework, and its bits do not depend on one: numbers are added in the
order of the parts, rounded to nearest even, and subnormal numbers stay what they are, exactly as numpy does it.

Arguments: the parts' pointers (at most MOST), how many there are, where the sum goes, how many numbers.
"""

from __future__ import annotations

MOST = 128
"""Parts at most; `job/shm/records.py` has no room for more members either."""
F32, I32, BF16 = "add_f32", "add_i32", "add_bf16"
"""The kernels; the last one adds pairs of bytes that are the upper half of a float32, and rounds once."""

_FRAME = """
.visible .entry {name}(.param .align 8 .b8 parts[{room}], .param .u32 count, .param .u64 out, .param .u64 size)
{{
  .reg .pred %p<4>;
  .reg .b16 %h<2>;
  .reg .b32 %r<12>;
  .reg .f32 %f<3>;
  .reg .b64 %d<12>;
  ld.param.u32 %r1, [count];
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [size];
  cvta.to.global.u64 %d1, %d1;
  mov.b64 %d3, parts;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %d4, %r2, %r3;
  cvt.u64.u32 %d5, %r4;
  add.u64 %d4, %d4, %d5;
  mul.wide.u32 %d6, %r5, %r3;
EACH:
  setp.ge.u64 %p1, %d4, %d2;
  @%p1 bra DONE;
  shl.b64 %d7, %d4, {shift};
  ld.param.u64 %d8, [%d3];
  cvta.to.global.u64 %d8, %d8;
  add.u64 %d8, %d8, %d7;
{first}
  mov.u32 %r6, 1;
  mov.b64 %d9, %d3;
MORE:
  setp.ge.u32 %p2, %r6, %r1;
  @%p2 bra PUT;
  add.u64 %d9, %d9, 8;
  ld.param.u64 %d8, [%d9];
  cvta.to.global.u64 %d8, %d8;
  add.u64 %d8, %d8, %d7;
{next}
  add.u32 %r6, %r6, 1;
  bra MORE;
PUT:
  add.u64 %d10, %d1, %d7;
{put}
  add.u64 %d4, %d4, %d6;
  bra EACH;
DONE:
  ret;
}}
"""
_WIDEN = """  ld.global.u16 %h1, [%d8];
  cvt.u32.u16 %r7, %h1;
  shl.b32 %r7, %r7, 16;
  mov.b32 {into}, %r7;"""
_ROUND = """  mov.b32 %r7, %f1;
  shr.u32 %r8, %r7, 16;
  and.b32 %r8, %r8, 1;
  add.u32 %r8, %r8, %r7;
  add.u32 %r8, %r8, 0x7fff;
  shr.u32 %r8, %r8, 16;
  and.b32 %r9, %r7, 0x7fffffff;
  setp.gt.u32 %p3, %r9, 0x7f800000;
  selp.b32 %r8, 0x7fc0, %r8, %p3;
  cvt.u16.u32 %h1, %r8;
  st.global.u16 [%d10], %h1;"""
_STEPS = {
    F32: (
        2,
        "  ld.global.f32 %f1, [%d8];",
        "  ld.global.f32 %f2, [%d8];\n  add.rn.f32 %f1, %f1, %f2;",
        "  st.global.f32 [%d10], %f1;",
    ),
    I32: (
        2,
        "  ld.global.u32 %r7, [%d8];",
        "  ld.global.u32 %r8, [%d8];\n  add.s32 %r7, %r7, %r8;",
        "  st.global.u32 [%d10], %r7;",
    ),
    BF16: (1, _WIDEN.format(into="%f1"), _WIDEN.format(into="%f2") + "\n  add.rn.f32 %f1, %f1, %f2;", _ROUND),
}


def module() -> str:
    """All kernels."""
    kernels = [
        _FRAME.format(name=name, room=8 * MOST, shift=shift, first=first, next=following, put=put)
        for name, (shift, first, following, put) in _STEPS.items()
    ]
    return "\n".join([".version 6.4", ".target sm_70", ".address_size 64", *kernels])

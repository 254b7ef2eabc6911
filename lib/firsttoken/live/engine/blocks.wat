;; Products with weights in the formats of GGUF files, which stay as they lie in the file: row after
;; row, a row in blocks, at any address. firsttoken.quantization has the layouts. All activations
;; are f32; addresses are bytes, and the memory is that of kernel.wat.
;;
;; f32x4.relaxed_madd, one instruction for a product and a sum, was tried and gains nothing:
;; measured in Chromium 156 on an EPYC, which multiplies and adds side by side.
(module
  (import "kernel" "memory" (memory 1))

  ;; Write the numbers of the blocks from `at` to `end` as f32: the same, bit for bit, as
  ;; `unpack_gguf`, but for the sign of a zero.

  (func (export "unpack_f32") (param $at i32) (param $end i32) (param $to i32)
    (memory.copy
      (local.get $to) (local.get $at) (i32.sub (local.get $end) (local.get $at))))

  (func (export "unpack_bf16 interleaved") (param $at i32) (param $end i32) (param $to i32)
    (local $packed v128) (local $mask v128)
    (local.set $mask (i32x4.splat (i32.const -65536)))
    (loop $next
      (local.set $packed (v128.load (local.get $at)))
      (v128.store (local.get $to) (i32x4.shl (local.get $packed) (i32.const 16)))
      (v128.store offset=16 (local.get $to) (v128.and (local.get $packed) (local.get $mask)))
      (local.set $at (i32.add (local.get $at) (i32.const 16)))
      (local.set $to (i32.add (local.get $to) (i32.const 32)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  (func (export "unpack_bf16") (param $at i32) (param $end i32) (param $to i32)
    (loop $next
      (v128.store (local.get $to)
        (i32x4.shl (v128.load16x4_u (local.get $at)) (i32.const 16)))
      (local.set $at (i32.add (local.get $at) (i32.const 8)))
      (local.set $to (i32.add (local.get $to) (i32.const 16)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  ;; As `halves` does it, without a call for each four: in two thirds of the time.
  (func (export "unpack_f16") (param $at i32) (param $end i32) (param $to i32)
    (local $half v128) (local $size v128)
    (local $sizes v128) (local $factor v128) (local $infinite v128) (local $exponent v128)
    (local.set $sizes (i32x4.splat (i32.const 0x7fff)))
    (local.set $factor (f32x4.splat (f32.const 0x1p112)))
    (local.set $infinite (i32x4.splat (i32.const 0x7c00)))
    (local.set $exponent (i32x4.splat (i32.const 0x7f800000)))
    (loop $next
      (local.set $half (v128.load16x4_u (local.get $at)))
      (local.set $size (v128.and (local.get $half) (local.get $sizes)))
      (v128.store (local.get $to)
        (v128.or
          (v128.or
            (i32x4.shl (v128.xor (local.get $half) (local.get $size)) (i32.const 16))
            (f32x4.mul (i32x4.shl (local.get $size) (i32.const 13)) (local.get $factor)))
          (v128.and
            (i32x4.ge_s (local.get $size) (local.get $infinite))
            (local.get $exponent))))
      (local.set $at (i32.add (local.get $at) (i32.const 8)))
      (local.set $to (i32.add (local.get $to) (i32.const 16)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  (func (export "unpack_q8_0") (param $at i32) (param $end i32) (param $to i32)
    (local $scale v128) (local $zero v128)
    (loop $next
      (local.set $scale (call $half (local.get $at)))
      (call $numbers (local.get $to)
        (v128.load offset=2 (local.get $at)) (v128.load offset=18 (local.get $at))
        (local.get $scale) (local.get $scale) (local.get $zero))
      (local.set $at (i32.add (local.get $at) (i32.const 34)))
      (local.set $to (i32.add (local.get $to) (i32.const 128)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  (func (export "unpack_q4_0") (param $at i32) (param $end i32) (param $to i32)
    (local $codes v128) (local $mask v128) (local $eight v128) (local $scale v128)
    (local $zero v128)
    (local.set $mask (i8x16.splat (i32.const 15)))
    (local.set $eight (i8x16.splat (i32.const 8)))
    (loop $next
      (local.set $codes (v128.load offset=2 (local.get $at)))
      (local.set $scale (call $half (local.get $at)))
      (call $numbers (local.get $to)
        (i8x16.sub (v128.and (local.get $codes) (local.get $mask)) (local.get $eight))
        (i8x16.sub
          (v128.and (i16x8.shr_u (local.get $codes) (i32.const 4)) (local.get $mask))
          (local.get $eight))
        (local.get $scale) (local.get $scale) (local.get $zero))
      (local.set $at (i32.add (local.get $at) (i32.const 18)))
      (local.set $to (i32.add (local.get $to) (i32.const 128)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  (func (export "unpack_q4_1") (param $at i32) (param $end i32) (param $to i32)
    (local $codes v128) (local $mask v128) (local $both v128) (local $scale v128)
    (local.set $mask (i8x16.splat (i32.const 15)))
    (loop $next
      (local.set $codes (v128.load offset=4 (local.get $at)))
      (local.set $both
        (call $halves (i32x4.extend_low_i16x8_u (v128.load32_zero (local.get $at)))))
      (local.set $scale
        (i8x16.shuffle 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 (local.get $both) (local.get $both)))
      (call $numbers (local.get $to)
        (v128.and (local.get $codes) (local.get $mask))
        (v128.and (i16x8.shr_u (local.get $codes) (i32.const 4)) (local.get $mask))
        (local.get $scale) (local.get $scale)
        (i8x16.shuffle 4 5 6 7 4 5 6 7 4 5 6 7 4 5 6 7 (local.get $both) (local.get $both)))
      (local.set $at (i32.add (local.get $at) (i32.const 20)))
      (local.set $to (i32.add (local.get $to) (i32.const 128)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  (func (export "unpack_q4_K") (param $at i32) (param $end i32) (param $to i32)
    (local $scale v128) (local $offset v128) (local $scales i64) (local $offsets i64)
    (local $both i32) (local $group i32) (local $codes i32) (local $shift i32)
    (local $mask v128) (local $d v128) (local $m v128)
    (local.set $mask (i8x16.splat (i32.const 15)))
    (loop $next
      (local.set $scale (call $half (local.get $at)))
      (local.set $offset (f32x4.neg (call $half (i32.add (local.get $at) (i32.const 2)))))
      ;; Six bits for each of eight groups. The first four are the low bits of a byte; of the
      ;; others, four bits lie in the last bytes and two at the top of the first.
      (local.set $scales (i64.load32_u offset=4 (local.get $at)))
      (local.set $offsets (i64.load32_u offset=8 (local.get $at)))
      (local.set $both (i32.load offset=12 (local.get $at)))
      (local.set $scales (call $six (local.get $scales) (local.get $both)))
      (local.set $offsets
        (call $six (local.get $offsets) (i32.shr_u (local.get $both) (i32.const 4))))
      (local.set $group (i32.const 0))
      (loop $groups
        (local.set $d (f32x4.mul (local.get $scale)
          (f32x4.splat (f32.convert_i64_u (i64.and (local.get $scales) (i64.const 63))))))
        (local.set $m (f32x4.mul (local.get $offset)
          (f32x4.splat (f32.convert_i64_u (i64.and (local.get $offsets) (i64.const 63))))))
        (local.set $scales (i64.shr_u (local.get $scales) (i64.const 8)))
        (local.set $offsets (i64.shr_u (local.get $offsets) (i64.const 8)))
        ;; Two groups share their bytes: low halves, high halves.
        (local.set $codes (i32.add (local.get $at)
          (i32.shl (i32.and (local.get $group) (i32.const 6)) (i32.const 4))))
        (local.set $shift (i32.shl (i32.and (local.get $group) (i32.const 1)) (i32.const 2)))
        (call $numbers (local.get $to)
          (v128.and (local.get $mask)
            (i16x8.shr_u (v128.load offset=16 (local.get $codes)) (local.get $shift)))
          (v128.and (local.get $mask)
            (i16x8.shr_u (v128.load offset=32 (local.get $codes)) (local.get $shift)))
          (local.get $d) (local.get $d) (local.get $m))
        (local.set $to (i32.add (local.get $to) (i32.const 128)))
        (local.set $group (i32.add (local.get $group) (i32.const 1)))
        (br_if $groups (i32.lt_u (local.get $group) (i32.const 8))))
      (local.set $at (i32.add (local.get $at) (i32.const 144)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  ;; Eight numbers of six bits, a byte each.
  (func $six (param $first i64) (param $others i32) (result i64)
    (i64.or
      (i64.and (local.get $first) (i64.const 0x3f3f3f3f))
      (i64.shl
        (i64.or
          (i64.extend_i32_u (i32.and (local.get $others) (i32.const 0x0f0f0f0f)))
          (i64.and (i64.shr_u (local.get $first) (i64.const 2)) (i64.const 0x30303030)))
        (i64.const 32))))

  (func (export "unpack_q6_K") (param $at i32) (param $end i32) (param $to i32)
    (local $scale v128) (local $zero v128) (local $group i32)
    (loop $next
      (local.set $scale (call $half (i32.add (local.get $at) (i32.const 208))))
      (local.set $group (i32.const 0))
      (loop $groups
        (call $numbers (local.get $to)
          (call $six_bits (local.get $at) (local.get $group))
          (call $six_bits (local.get $at) (i32.add (local.get $group) (i32.const 1)))
          (f32x4.mul (local.get $scale)
            (f32x4.splat (f32.convert_i32_s
              (i32.load8_s offset=192 (i32.add (local.get $at) (local.get $group))))))
          (f32x4.mul (local.get $scale)
            (f32x4.splat (f32.convert_i32_s
              (i32.load8_s offset=193 (i32.add (local.get $at) (local.get $group))))))
          (local.get $zero))
        (local.set $to (i32.add (local.get $to) (i32.const 128)))
        (local.set $group (i32.add (local.get $group) (i32.const 2)))
        (br_if $groups (i32.lt_u (local.get $group) (i32.const 16))))
      (local.set $at (i32.add (local.get $at) (i32.const 210)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  ;; The codes of one of sixteen groups, less 32. Each half of the block has eight groups: there,
  ;; two share 16 bytes of low bits, and four share 16 bytes of high bits.
  (func $six_bits (param $at i32) (param $group i32) (result v128)
    (local $half i32)
    (local.set $half (i32.shr_u (local.get $group) (i32.const 3)))
    (i8x16.sub
      (v128.or
        (v128.and (i8x16.splat (i32.const 0x0f))
          (i16x8.shr_u
            (v128.load (i32.add (local.get $at)
              (i32.add (i32.shl (local.get $half) (i32.const 6))
                (i32.shl (i32.and (local.get $group) (i32.const 3)) (i32.const 4)))))
            (i32.and (local.get $group) (i32.const 4))))
        (i16x8.shl
          (v128.and (i8x16.splat (i32.const 0x03))
            (i16x8.shr_u
              (v128.load offset=128 (i32.add (local.get $at)
                (i32.add (i32.shl (local.get $half) (i32.const 5))
                  (i32.shl (i32.and (local.get $group) (i32.const 1)) (i32.const 4)))))
              (i32.and (local.get $group) (i32.const 6))))
          (i32.const 4)))
      (i8x16.splat (i32.const 32))))

  ;; Four numbers of f16, in the lower halves of the lanes, as f32. An f16's exponent, moved to
  ;; where an f32 has it, counts 112 too few; a product with 2^112 mends that, subnormals included.
  ;; What is infinite or NaN in f16 comes out as 2^16 and more, and gets the exponent of those.
  (func $halves (param $halves v128) (result v128)
    (local $size v128)
    (local.set $size (v128.and (local.get $halves) (i32x4.splat (i32.const 0x7fff))))
    (v128.or
      (v128.or
        (i32x4.shl (v128.xor (local.get $halves) (local.get $size)) (i32.const 16))
        (f32x4.mul (i32x4.shl (local.get $size) (i32.const 13)) (f32x4.splat (f32.const 0x1p112))))
      (v128.and
        (i32x4.ge_s (local.get $size) (i32x4.splat (i32.const 0x7c00)))
        (i32x4.splat (i32.const 0x7f800000)))))

  ;; One f16, as f32 in all four lanes.
  (func $half (param $at i32) (result v128)
    (call $halves (i32x4.splat (i32.load16_u (local.get $at)))))

  ;; Write scale · code + offset for thirty-two codes of a byte. The second half has its own scale.
  (func $numbers (param $to i32) (param $first v128) (param $second v128) (param $scale v128)
    (param $scale2 v128) (param $offset v128)
    (local $part v128)
    (local.set $part (i16x8.extend_low_i8x16_s (local.get $first)))
    (v128.store (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale)
        (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $part))))))
    (v128.store offset=16 (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale)
        (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $part))))))
    (local.set $part (i16x8.extend_high_i8x16_s (local.get $first)))
    (v128.store offset=32 (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale)
        (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $part))))))
    (v128.store offset=48 (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale)
        (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $part))))))
    (local.set $part (i16x8.extend_low_i8x16_s (local.get $second)))
    (v128.store offset=64 (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale2)
        (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $part))))))
    (v128.store offset=80 (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale2)
        (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $part))))))
    (local.set $part (i16x8.extend_high_i8x16_s (local.get $second)))
    (v128.store offset=96 (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale2)
        (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $part))))))
    (v128.store offset=112 (local.get $to)
      (f32x4.add (local.get $offset) (f32x4.mul (local.get $scale2)
        (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $part)))))))

  ;; y [rows, n] = x [rows, in] · w [n, in]ᵀ, all f32; `in` a multiple of 8. The rows of y are
  ;; `stride` bytes apart, so that n outputs can be a part of all.
  (func (export "product")
    (param $x i32) (param $rows i32) (param $w i32) (param $n i32) (param $in i32)
    (param $y i32) (param $stride i32)
    (local.set $in (i32.shl (local.get $in) (i32.const 2)))
    (block $rest
      (loop $next
        (br_if $rest (i32.lt_u (local.get $rows) (i32.const 4)))
        (call $four (local.get $x) (local.get $w) (local.get $n) (local.get $in)
          (local.get $y) (local.get $stride))
        (local.set $rows (i32.sub (local.get $rows) (i32.const 4)))
        (local.set $x (i32.add (local.get $x) (i32.shl (local.get $in) (i32.const 2))))
        (local.set $y (i32.add (local.get $y) (i32.shl (local.get $stride) (i32.const 2))))
        (br $next)))
    (call $rows (local.get $x) (local.get $rows) (local.get $in) (local.get $w) (local.get $in)
      (local.get $in) (local.get $n) (local.get $y) (local.get $stride) (i32.const 0)))

  ;; Four rows of x, two of w at a time; where one is left, it is taken twice.
  (func $four (param $x i32) (param $w i32) (param $n i32) (param $in i32) (param $y i32)
    (param $stride i32)
    (local $last i32) (local $y_last i32) (local $i i32) (local $w1 i32)
    (local $x1 i32) (local $x2 i32) (local $x3 i32)
    (local $low v128) (local $high v128) (local $low1 v128) (local $high1 v128) (local $v v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local $b0 v128) (local $b1 v128) (local $b2 v128) (local $b3 v128)
    (local.set $n (i32.sub (local.get $n) (i32.const 1)))
    (local.set $last (i32.add (local.get $w) (i32.mul (local.get $n) (local.get $in))))
    (local.set $y_last (i32.add (local.get $y) (i32.shl (local.get $n) (i32.const 2))))
    (local.set $x1 (i32.add (local.get $x) (local.get $in)))
    (local.set $x2 (i32.add (local.get $x1) (local.get $in)))
    (local.set $x3 (i32.add (local.get $x2) (local.get $in)))
    (loop $outputs
      (local.set $w1 (call $least (i32.add (local.get $w) (local.get $in)) (local.get $last)))
      (local.set $a0 (v128.const f32x4 0 0 0 0))
      (local.set $a1 (v128.const f32x4 0 0 0 0))
      (local.set $a2 (v128.const f32x4 0 0 0 0))
      (local.set $a3 (v128.const f32x4 0 0 0 0))
      (local.set $b0 (v128.const f32x4 0 0 0 0))
      (local.set $b1 (v128.const f32x4 0 0 0 0))
      (local.set $b2 (v128.const f32x4 0 0 0 0))
      (local.set $b3 (v128.const f32x4 0 0 0 0))
      (local.set $i (i32.const 0))
      (loop $inputs
        (local.set $low (v128.load (i32.add (local.get $w) (local.get $i))))
        (local.set $high (v128.load offset=16 (i32.add (local.get $w) (local.get $i))))
        (local.set $low1 (v128.load (i32.add (local.get $w1) (local.get $i))))
        (local.set $high1 (v128.load offset=16 (i32.add (local.get $w1) (local.get $i))))
        (local.set $v (v128.load (i32.add (local.get $x) (local.get $i))))
        (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $v) (local.get $low))))
        (local.set $b0 (f32x4.add (local.get $b0) (f32x4.mul (local.get $v) (local.get $low1))))
        (local.set $v (v128.load (i32.add (local.get $x1) (local.get $i))))
        (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $v) (local.get $low))))
        (local.set $b1 (f32x4.add (local.get $b1) (f32x4.mul (local.get $v) (local.get $low1))))
        (local.set $v (v128.load (i32.add (local.get $x2) (local.get $i))))
        (local.set $a2 (f32x4.add (local.get $a2) (f32x4.mul (local.get $v) (local.get $low))))
        (local.set $b2 (f32x4.add (local.get $b2) (f32x4.mul (local.get $v) (local.get $low1))))
        (local.set $v (v128.load (i32.add (local.get $x3) (local.get $i))))
        (local.set $a3 (f32x4.add (local.get $a3) (f32x4.mul (local.get $v) (local.get $low))))
        (local.set $b3 (f32x4.add (local.get $b3) (f32x4.mul (local.get $v) (local.get $low1))))
        (local.set $v (v128.load offset=16 (i32.add (local.get $x) (local.get $i))))
        (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $v) (local.get $high))))
        (local.set $b0 (f32x4.add (local.get $b0) (f32x4.mul (local.get $v) (local.get $high1))))
        (local.set $v (v128.load offset=16 (i32.add (local.get $x1) (local.get $i))))
        (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $v) (local.get $high))))
        (local.set $b1 (f32x4.add (local.get $b1) (f32x4.mul (local.get $v) (local.get $high1))))
        (local.set $v (v128.load offset=16 (i32.add (local.get $x2) (local.get $i))))
        (local.set $a2 (f32x4.add (local.get $a2) (f32x4.mul (local.get $v) (local.get $high))))
        (local.set $b2 (f32x4.add (local.get $b2) (f32x4.mul (local.get $v) (local.get $high1))))
        (local.set $v (v128.load offset=16 (i32.add (local.get $x3) (local.get $i))))
        (local.set $a3 (f32x4.add (local.get $a3) (f32x4.mul (local.get $v) (local.get $high))))
        (local.set $b3 (f32x4.add (local.get $b3) (f32x4.mul (local.get $v) (local.get $high1))))
        (local.set $i (i32.add (local.get $i) (i32.const 32)))
        (br_if $inputs (i32.lt_u (local.get $i) (local.get $in))))
      (call $column (local.get $y) (local.get $stride)
        (call $sums (local.get $a0) (local.get $a1) (local.get $a2) (local.get $a3)))
      (call $column
        (call $least (i32.add (local.get $y) (i32.const 4)) (local.get $y_last)) (local.get $stride)
        (call $sums (local.get $b0) (local.get $b1) (local.get $b2) (local.get $b3)))
      (local.set $w (i32.add (local.get $w1) (local.get $in)))
      (local.set $y (i32.add (local.get $y) (i32.const 8)))
      (br_if $outputs (i32.le_u (local.get $y) (local.get $y_last)))))

  ;; Write an output of four rows.
  (func $column (param $y i32) (param $stride i32) (param $four v128)
    (v128.store32_lane 0 (local.get $y) (local.get $four))
    (local.set $y (i32.add (local.get $y) (local.get $stride)))
    (v128.store32_lane 1 (local.get $y) (local.get $four))
    (local.set $y (i32.add (local.get $y) (local.get $stride)))
    (v128.store32_lane 2 (local.get $y) (local.get $four))
    (v128.store32_lane 3 (i32.add (local.get $y) (local.get $stride)) (local.get $four)))

  ;; y [rows, n] = x [rows, in] · w [n, in]ᵀ with blocks of q4_0, q4_1 or q8_0, which their size
  ;; tells apart. They are taken as they lie: for few rows, nothing is unpacked to memory. `room` is
  ;; for what x is turned into, 5 bytes for each number.
  (func (export "rows")
    (param $x i32) (param $rows i32) (param $w i32) (param $block i32) (param $n i32)
    (param $in i32) (param $y i32) (param $room i32)
    (local $bytes i32) (local $stride i32)
    (local.set $bytes (i32.mul (i32.shr_u (local.get $in) (i32.const 5)) (local.get $block)))
    (local.set $stride (i32.shl (local.get $n) (i32.const 2)))
    (if (i32.eq (local.get $block) (i32.const 34))
      (then
        (call $rows (local.get $x) (local.get $rows) (i32.shl (local.get $in) (i32.const 2))
          (local.get $w) (local.get $bytes) (local.get $block) (local.get $n)
          (local.get $y) (local.get $stride) (i32.const 1)))
      (else
        (call $turn (local.get $x) (i32.mul (local.get $rows) (local.get $in)) (local.get $room))
        (call $rows (local.get $room) (local.get $rows)
          (i32.mul (i32.shr_u (local.get $in) (i32.const 5)) (i32.const 144))
          (local.get $w) (local.get $bytes) (local.get $block) (local.get $n)
          (local.get $y) (local.get $stride) (i32.const 2)))))

  ;; The same with x rounded (see `round`), and products of whole numbers. Any number of rows, and
  ;; each gives what it gives alone. The sums of a block are exact, so it does not show which
  ;; instructions made them.
  (func (export "rounded")
    (param $x i32) (param $rows i32) (param $w i32) (param $block i32) (param $n i32)
    (param $in i32) (param $y i32) (param $room i32)
    (local $bytes i32) (local $stride i32) (local $fours i32)
    (local.set $bytes (i32.mul (i32.shr_u (local.get $in) (i32.const 5)) (local.get $block)))
    (local.set $stride (i32.shl (local.get $n) (i32.const 2)))
    (if (i32.ne (local.get $block) (i32.const 34))
      (then (local.set $fours (i32.and (local.get $rows) (i32.const -4)))))
    (if (local.get $fours)
      (then (call $fours_rounded (local.get $x) (local.get $fours) (local.get $in) (local.get $w)
        (local.get $bytes) (local.get $block) (local.get $n) (local.get $y) (local.get $room))))
    (local.set $rows (i32.sub (local.get $rows) (local.get $fours)))
    (if (local.get $rows)
      (then
        (call $round
          (i32.add (local.get $x)
            (i32.shl (i32.mul (local.get $fours) (local.get $in)) (i32.const 2)))
          (i32.mul (local.get $rows) (local.get $in))
          (local.get $room) (i32.add (local.get $room) (i32.const 32)) (i32.const 1))
        (call $rows (local.get $room) (local.get $rows)
          (i32.mul (i32.shr_u (local.get $in) (i32.const 5)) (i32.const 40))
          (local.get $w) (local.get $bytes) (local.get $block) (local.get $n)
          (i32.add (local.get $y) (i32.mul (local.get $fours) (local.get $stride)))
          (local.get $stride)
          (select (i32.const 3) (i32.const 4) (i32.eq (local.get $block) (i32.const 34)))))))

  ;; Four outputs at a time, one from each quarter of the matrix: so four long runs of memory are
  ;; read, and processors fetch these ahead, as they do not for four neighbouring rows (measured as
  ;; above: q8_0 comes from memory at 10 instead of 3.5 GB/s). Where the last quarter is shorter,
  ;; its last row is taken again. `x_bytes` and `bytes` are those of a row of x and of w; `dots` is
  ;; a place in the table.
  (func $rows
    (param $x i32) (param $rows i32) (param $x_bytes i32) (param $w i32) (param $bytes i32)
    (param $block i32) (param $n i32) (param $y i32) (param $stride i32) (param $dots i32)
    (local $quarter i32) (local $w_last i32) (local $y_last i32) (local $y_end i32)
    (local $w_apart i32) (local $y_apart i32) (local $w1 i32) (local $w2 i32) (local $w3 i32)
    (local $row i32) (local $to i32)
    (local.set $quarter (i32.shr_u (i32.add (local.get $n) (i32.const 3)) (i32.const 2)))
    (local.set $w_apart (i32.mul (local.get $quarter) (local.get $bytes)))
    (local.set $y_apart (i32.shl (local.get $quarter) (i32.const 2)))
    (local.set $y_end (i32.add (local.get $y) (local.get $y_apart)))
    (local.set $n (i32.sub (local.get $n) (i32.const 1)))
    (local.set $w_last (i32.add (local.get $w) (i32.mul (local.get $n) (local.get $bytes))))
    (local.set $y_last (i32.add (local.get $y) (i32.shl (local.get $n) (i32.const 2))))
    (loop $outputs
      (local.set $w1
        (call $least (i32.add (local.get $w) (local.get $w_apart)) (local.get $w_last)))
      (local.set $w2
        (call $least (i32.add (local.get $w1) (local.get $w_apart)) (local.get $w_last)))
      (local.set $w3
        (call $least (i32.add (local.get $w2) (local.get $w_apart)) (local.get $w_last)))
      (local.set $row (i32.const 0))
      (block $done
        (loop $next
          (br_if $done (i32.ge_u (local.get $row) (local.get $rows)))
          (local.set $to (i32.mul (local.get $row) (local.get $stride)))
          (call $write
            (i32.add (local.get $to) (local.get $y)) (local.get $y_apart)
            (i32.add (local.get $to) (local.get $y_last))
            (call_indirect (type $dots)
              (i32.add (local.get $x) (i32.mul (local.get $row) (local.get $x_bytes)))
              (local.get $bytes) (local.get $block)
              (local.get $w) (local.get $w1) (local.get $w2) (local.get $w3) (local.get $dots)))
          (local.set $row (i32.add (local.get $row) (i32.const 1)))
          (br $next)))
      (local.set $w (i32.add (local.get $w) (local.get $bytes)))
      (local.set $y (i32.add (local.get $y) (i32.const 4)))
      (br_if $outputs (i32.lt_u (local.get $y) (local.get $y_end)))))

  ;; Write four outputs that are `apart`, none behind the last.
  (func $write (param $y i32) (param $apart i32) (param $last i32) (param $outputs v128)
    (v128.store32_lane 0 (local.get $y) (local.get $outputs))
    (local.set $y (call $least (i32.add (local.get $y) (local.get $apart)) (local.get $last)))
    (v128.store32_lane 1 (local.get $y) (local.get $outputs))
    (local.set $y (call $least (i32.add (local.get $y) (local.get $apart)) (local.get $last)))
    (v128.store32_lane 2 (local.get $y) (local.get $outputs))
    (local.set $y (call $least (i32.add (local.get $y) (local.get $apart)) (local.get $last)))
    (v128.store32_lane 3 (local.get $y) (local.get $outputs)))

  (func $least (param $a i32) (param $b i32) (result i32)
    (select (local.get $a) (local.get $b) (i32.lt_u (local.get $a) (local.get $b))))

  ;; The products of a row of x with four rows of weights, of `bytes` each, in blocks of `block`.
  ;; The codes of a block are added up before its scale comes to them.
  ;;
  ;; With q4, scales and offsets become f32 without calls of `halves`, which took a sixth of the
  ;; time, and with rounded x a quarter. What is infinite becomes NaN: only that is too large to be
  ;; taken times 2^112 twice, and infinity times zero is NaN.
  (type $dots
    (func (param i32 i32 i32 i32 i32 i32 i32) (result v128)))
  (table funcref (elem $f32 $q8_0 $q4 $q8_0_rounded $q4_rounded))

  (func $f32 (type $dots)
    (param $x i32) (param $bytes i32) (param $block i32)
    (param $w i32) (param $w1 i32) (param $w2 i32) (param $w3 i32) (result v128)
    (local $low v128) (local $high v128) (local $i i32)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local $b0 v128) (local $b1 v128) (local $b2 v128) (local $b3 v128)
    (loop $inputs
      (local.set $low (v128.load (i32.add (local.get $x) (local.get $i))))
      (local.set $high (v128.load offset=16 (i32.add (local.get $x) (local.get $i))))
      (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $low)
        (v128.load (i32.add (local.get $w) (local.get $i))))))
      (local.set $b0 (f32x4.add (local.get $b0) (f32x4.mul (local.get $high)
        (v128.load offset=16 (i32.add (local.get $w) (local.get $i))))))
      (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $low)
        (v128.load (i32.add (local.get $w1) (local.get $i))))))
      (local.set $b1 (f32x4.add (local.get $b1) (f32x4.mul (local.get $high)
        (v128.load offset=16 (i32.add (local.get $w1) (local.get $i))))))
      (local.set $a2 (f32x4.add (local.get $a2) (f32x4.mul (local.get $low)
        (v128.load (i32.add (local.get $w2) (local.get $i))))))
      (local.set $b2 (f32x4.add (local.get $b2) (f32x4.mul (local.get $high)
        (v128.load offset=16 (i32.add (local.get $w2) (local.get $i))))))
      (local.set $a3 (f32x4.add (local.get $a3) (f32x4.mul (local.get $low)
        (v128.load (i32.add (local.get $w3) (local.get $i))))))
      (local.set $b3 (f32x4.add (local.get $b3) (f32x4.mul (local.get $high)
        (v128.load offset=16 (i32.add (local.get $w3) (local.get $i))))))
      (local.set $i (i32.add (local.get $i) (i32.const 32)))
      (br_if $inputs (i32.lt_u (local.get $i) (local.get $bytes))))
    (call $sums
      (f32x4.add (local.get $a0) (local.get $b0)) (f32x4.add (local.get $a1) (local.get $b1))
      (f32x4.add (local.get $a2) (local.get $b2)) (f32x4.add (local.get $a3) (local.get $b3))))

  (func $q8_0 (type $dots)
    (param $x i32) (param $bytes i32) (param $block i32)
    (param $w i32) (param $w1 i32) (param $w2 i32) (param $w3 i32) (result v128)
    (local $end i32) (local $block_end i32)
    (local $low v128) (local $high v128) (local $v v128) (local $scale v128) (local $zero v128)
    (local $s0 v128) (local $s1 v128) (local $s2 v128) (local $s3 v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local.set $end (i32.add (local.get $w) (local.get $bytes)))
    (loop $blocks
      (local.set $scale (call $halves
        (v128.load16_lane 6 (local.get $w3)
          (v128.load16_lane 4 (local.get $w2)
            (v128.load16_lane 2 (local.get $w1)
              (v128.load16_lane 0 (local.get $w) (local.get $zero)))))))
      (local.set $s0 (local.get $zero))
      (local.set $s1 (local.get $zero))
      (local.set $s2 (local.get $zero))
      (local.set $s3 (local.get $zero))
      (local.set $block_end (i32.add (local.get $x) (i32.const 128)))
      (loop $parts
        (local.set $low (v128.load (local.get $x)))
        (local.set $high (v128.load offset=16 (local.get $x)))
        (local.set $v (v128.load8x8_s offset=2 (local.get $w)))
        (local.set $s0 (f32x4.add (local.get $s0) (f32x4.mul (local.get $low)
          (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $v))))))
        (local.set $s0 (f32x4.add (local.get $s0) (f32x4.mul (local.get $high)
          (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $v))))))
        (local.set $v (v128.load8x8_s offset=2 (local.get $w1)))
        (local.set $s1 (f32x4.add (local.get $s1) (f32x4.mul (local.get $low)
          (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $v))))))
        (local.set $s1 (f32x4.add (local.get $s1) (f32x4.mul (local.get $high)
          (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $v))))))
        (local.set $v (v128.load8x8_s offset=2 (local.get $w2)))
        (local.set $s2 (f32x4.add (local.get $s2) (f32x4.mul (local.get $low)
          (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $v))))))
        (local.set $s2 (f32x4.add (local.get $s2) (f32x4.mul (local.get $high)
          (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $v))))))
        (local.set $v (v128.load8x8_s offset=2 (local.get $w3)))
        (local.set $s3 (f32x4.add (local.get $s3) (f32x4.mul (local.get $low)
          (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $v))))))
        (local.set $s3 (f32x4.add (local.get $s3) (f32x4.mul (local.get $high)
          (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $v))))))
        (local.set $w (i32.add (local.get $w) (i32.const 8)))
        (local.set $w1 (i32.add (local.get $w1) (i32.const 8)))
        (local.set $w2 (i32.add (local.get $w2) (i32.const 8)))
        (local.set $w3 (i32.add (local.get $w3) (i32.const 8)))
        (local.set $x (i32.add (local.get $x) (i32.const 32)))
        (br_if $parts (i32.lt_u (local.get $x) (local.get $block_end))))
      (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $s0)
        (i8x16.shuffle 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 (local.get $scale) (local.get $scale)))))
      (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $s1)
        (i8x16.shuffle 4 5 6 7 4 5 6 7 4 5 6 7 4 5 6 7 (local.get $scale) (local.get $scale)))))
      (local.set $a2 (f32x4.add (local.get $a2) (f32x4.mul (local.get $s2)
        (i8x16.shuffle 8 9 10 11 8 9 10 11 8 9 10 11 8 9 10 11
          (local.get $scale) (local.get $scale)))))
      (local.set $a3 (f32x4.add (local.get $a3) (f32x4.mul (local.get $s3)
        (i8x16.shuffle 12 13 14 15 12 13 14 15 12 13 14 15 12 13 14 15
          (local.get $scale) (local.get $scale)))))
      (local.set $w (i32.add (local.get $w) (i32.const 2)))
      (local.set $w1 (i32.add (local.get $w1) (i32.const 2)))
      (local.set $w2 (i32.add (local.get $w2) (i32.const 2)))
      (local.set $w3 (i32.add (local.get $w3) (i32.const 2)))
      (br_if $blocks (i32.lt_u (local.get $w) (local.get $end))))
    (call $sums (local.get $a0) (local.get $a1) (local.get $a2) (local.get $a3)))

  ;; Of q4_0 and q4_1; x is what `turn` has made of it.
  (func $q4 (type $dots)
    (param $x i32) (param $bytes i32) (param $block i32)
    (param $w i32) (param $w1 i32) (param $w2 i32) (param $w3 i32) (result v128)
    (local $end i32) (local $block_end i32) (local $codes i32)
    (local $v0 v128) (local $v1 v128) (local $v2 v128) (local $v3 v128) (local $t v128)
    (local $s0 v128) (local $s1 v128) (local $s2 v128) (local $s3 v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local $both v128) (local $bits v128) (local $factor v128) (local $minus_eight v128)
    (local $scale v128) (local $offset v128) (local $y v128)
    (local $low v128) (local $high v128) (local $zero v128)
    (local.set $low (i32x4.splat (i32.const 0x0f)))
    (local.set $high (i32x4.splat (i32.const 0xf0)))
    (local.set $bits (i32x4.splat (i32.const 0x8fffe000)))
    (local.set $factor (f32x4.splat (f32.const 0x1p112)))
    (local.set $minus_eight (f32x4.splat (f32.const -8)))
    (local.set $codes (i32.sub (local.get $block) (i32.const 16)))
    (local.set $end (i32.add (local.get $w) (local.get $bytes)))
    (loop $blocks
      (local.set $v0 (v128.load (i32.add (local.get $w) (local.get $codes))))
      (local.set $v1 (v128.load (i32.add (local.get $w1) (local.get $codes))))
      (local.set $v2 (v128.load (i32.add (local.get $w2) (local.get $codes))))
      (local.set $v3 (v128.load (i32.add (local.get $w3) (local.get $codes))))
      (local.set $s0 (local.get $zero))
      (local.set $s1 (local.get $zero))
      (local.set $s2 (local.get $zero))
      (local.set $s3 (local.get $zero))
      (local.set $block_end (i32.add (local.get $x) (i32.const 128)))
      (loop $parts
        (local.set $t (v128.load (local.get $x)))
        (local.set $s0 (f32x4.add (local.get $s0) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v0) (local.get $low))))))
        (local.set $s1 (f32x4.add (local.get $s1) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v1) (local.get $low))))))
        (local.set $s2 (f32x4.add (local.get $s2) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v2) (local.get $low))))))
        (local.set $s3 (f32x4.add (local.get $s3) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v3) (local.get $low))))))
        (local.set $t (v128.load offset=16 (local.get $x)))
        (local.set $s0 (f32x4.add (local.get $s0) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v0) (local.get $high))))))
        (local.set $s1 (f32x4.add (local.get $s1) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v1) (local.get $high))))))
        (local.set $s2 (f32x4.add (local.get $s2) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v2) (local.get $high))))))
        (local.set $s3 (f32x4.add (local.get $s3) (f32x4.mul (local.get $t)
          (f32x4.convert_i32x4_s (v128.and (local.get $v3) (local.get $high))))))
        (local.set $v0 (i32x4.shr_u (local.get $v0) (i32.const 8)))
        (local.set $v1 (i32x4.shr_u (local.get $v1) (i32.const 8)))
        (local.set $v2 (i32x4.shr_u (local.get $v2) (i32.const 8)))
        (local.set $v3 (i32x4.shr_u (local.get $v3) (i32.const 8)))
        (local.set $x (i32.add (local.get $x) (i32.const 32)))
        (br_if $parts (i32.lt_u (local.get $x) (local.get $block_end))))
      (local.set $both
        (v128.load32_lane 3 (local.get $w3)
          (v128.load32_lane 2 (local.get $w2)
            (v128.load32_lane 1 (local.get $w1) (v128.load32_zero (local.get $w))))))
      (local.set $scale (f32x4.mul (local.get $factor)
        (v128.and (local.get $bits)
          (i32x4.shr_s (i32x4.shl (local.get $both) (i32.const 16)) (i32.const 3)))))
      (local.set $scale (f32x4.add (local.get $scale)
        (f32x4.mul (f32x4.mul (local.get $scale) (local.get $factor)) (local.get $zero))))
      (if (i32.eq (local.get $block) (i32.const 20))
        (then
          (local.set $offset (f32x4.mul (local.get $factor)
            (v128.and (local.get $bits) (i32x4.shr_s (local.get $both) (i32.const 3)))))
          (local.set $offset (f32x4.add (local.get $offset)
            (f32x4.mul (f32x4.mul (local.get $offset) (local.get $factor)) (local.get $zero)))))
        (else
          (local.set $offset (f32x4.mul (local.get $scale) (local.get $minus_eight)))))
      (local.set $y (f32x4.add (local.get $y)
        (f32x4.mul (local.get $offset) (v128.load (local.get $x)))))
      (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $s0)
        (i8x16.shuffle 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 (local.get $scale) (local.get $scale)))))
      (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $s1)
        (i8x16.shuffle 4 5 6 7 4 5 6 7 4 5 6 7 4 5 6 7 (local.get $scale) (local.get $scale)))))
      (local.set $a2 (f32x4.add (local.get $a2) (f32x4.mul (local.get $s2)
        (i8x16.shuffle 8 9 10 11 8 9 10 11 8 9 10 11 8 9 10 11
          (local.get $scale) (local.get $scale)))))
      (local.set $a3 (f32x4.add (local.get $a3) (f32x4.mul (local.get $s3)
        (i8x16.shuffle 12 13 14 15 12 13 14 15 12 13 14 15 12 13 14 15
          (local.get $scale) (local.get $scale)))))
      (local.set $x (i32.add (local.get $x) (i32.const 16)))
      (local.set $w (i32.add (local.get $w) (local.get $block)))
      (local.set $w1 (i32.add (local.get $w1) (local.get $block)))
      (local.set $w2 (i32.add (local.get $w2) (local.get $block)))
      (local.set $w3 (i32.add (local.get $w3) (local.get $block)))
      (br_if $blocks (i32.lt_u (local.get $w) (local.get $end))))
    (f32x4.add (local.get $y)
      (call $sums (local.get $a0) (local.get $a1) (local.get $a2) (local.get $a3))))

  ;; Bring x to the order in which the products with q4 take the codes of a block: four at a time,
  ;; one from each 32 bits, by mask and shift. So sixteen numbers are a matrix of four by four that
  ;; is transposed. In 144 bytes for each 32 numbers stand alternately four of their first and of
  ;; their second half, the latter divided by 16, since their codes are the high halves of bytes;
  ;; then the sum of all, in four lanes.
  (func $turn (param $x i32) (param $size i32) (param $to i32)
    (local $end i32) (local $one v128) (local $sixteenth v128)
    (local.set $one (f32x4.splat (f32.const 1)))
    (local.set $sixteenth (f32x4.splat (f32.const 0.0625)))
    (local.set $end (i32.add (local.get $x) (i32.shl (local.get $size) (i32.const 2))))
    (loop $next
      (v128.store offset=128 (local.get $to)
        (f32x4.add
          (call $transpose (local.get $x) (local.get $to) (local.get $one))
          (call $transpose (i32.add (local.get $x) (i32.const 64))
            (i32.add (local.get $to) (i32.const 16)) (local.get $sixteenth))))
      (local.set $x (i32.add (local.get $x) (i32.const 128)))
      (local.set $to (i32.add (local.get $to) (i32.const 144)))
      (br_if $next (i32.lt_u (local.get $x) (local.get $end)))))

  ;; Returns the sum of the sixteen, as it is before they are scaled, in all lanes.
  (func $transpose (param $x i32) (param $to i32) (param $scale v128) (result v128)
    (local $a v128) (local $b v128) (local $c v128) (local $d v128)
    (local $ac v128) (local $bd v128) (local $sum v128)
    (local.set $a (v128.load (local.get $x)))
    (local.set $b (v128.load offset=16 (local.get $x)))
    (local.set $c (v128.load offset=32 (local.get $x)))
    (local.set $d (v128.load offset=48 (local.get $x)))
    (local.set $sum (f32x4.add (f32x4.add (local.get $a) (local.get $b))
      (f32x4.add (local.get $c) (local.get $d))))
    (local.set $ac
      (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $a) (local.get $c)))
    (local.set $bd
      (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $b) (local.get $d)))
    (v128.store (local.get $to) (f32x4.mul (local.get $scale)
      (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $ac) (local.get $bd))))
    (v128.store offset=32 (local.get $to) (f32x4.mul (local.get $scale)
      (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
        (local.get $ac) (local.get $bd))))
    (local.set $ac
      (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $a) (local.get $c)))
    (local.set $bd
      (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $b) (local.get $d)))
    (v128.store offset=64 (local.get $to) (f32x4.mul (local.get $scale)
      (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $ac) (local.get $bd))))
    (v128.store offset=96 (local.get $to) (f32x4.mul (local.get $scale)
      (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
        (local.get $ac) (local.get $bd))))
    (call $sums (local.get $sum) (local.get $sum) (local.get $sum) (local.get $sum)))

  ;; Round x, 32 numbers at a time, to codes from -127 to 127 times a scale. The codes go to
  ;; `codes`, the scale to `scales`, and behind the scales of as many `rows` as are interleaved: the
  ;; sum of the codes, times the scale. The next 32 go 40 bytes per row further on.
  (func $round (param $x i32) (param $size i32) (param $codes i32) (param $scales i32)
    (param $rows i32)
    (local $end i32) (local $apart i32) (local $most v128) (local $scale f32) (local $inverse v128)
    (local $sum v128)
    (local.set $apart (i32.mul (local.get $rows) (i32.const 40)))
    (local.set $end (i32.add (local.get $x) (i32.shl (local.get $size) (i32.const 2))))
    (loop $next
      (local.set $most (f32x4.max
        (call $largest (local.get $x)) (call $largest (i32.add (local.get $x) (i32.const 64)))))
      (local.set $most (f32x4.max (local.get $most)
        (i8x16.shuffle 8 9 10 11 12 13 14 15 0 1 2 3 4 5 6 7 (local.get $most) (local.get $most))))
      (local.set $most (f32x4.max (local.get $most)
        (i8x16.shuffle 4 5 6 7 0 1 2 3 12 13 14 15 8 9 10 11 (local.get $most) (local.get $most))))
      (local.set $scale (f32.div (f32x4.extract_lane 0 (local.get $most)) (f32.const 127)))
      (local.set $inverse (f32x4.splat
        (if (result f32) (f32.eq (local.get $scale) (f32.const 0))
          (then (f32.const 0))
          (else (f32.div (f32.const 1) (local.get $scale))))))
      (local.set $sum (i32x4.add
        (call $codes (local.get $x) (local.get $codes) (local.get $inverse))
        (call $codes (i32.add (local.get $x) (i32.const 64))
          (i32.add (local.get $codes) (i32.const 16)) (local.get $inverse))))
      (local.set $sum (i32x4.add (local.get $sum)
        (i8x16.shuffle 8 9 10 11 12 13 14 15 0 1 2 3 4 5 6 7 (local.get $sum) (local.get $sum))))
      (f32.store (local.get $scales) (local.get $scale))
      (f32.store (i32.add (local.get $scales) (i32.shl (local.get $rows) (i32.const 2)))
        (f32.mul (local.get $scale) (f32.convert_i32_s (i32.add
          (i32x4.extract_lane 0 (local.get $sum)) (i32x4.extract_lane 1 (local.get $sum))))))
      (local.set $x (i32.add (local.get $x) (i32.const 128)))
      (local.set $codes (i32.add (local.get $codes) (local.get $apart)))
      (local.set $scales (i32.add (local.get $scales) (local.get $apart)))
      (br_if $next (i32.lt_u (local.get $x) (local.get $end)))))

  ;; The largest magnitudes of sixteen numbers, four by four.
  (func $largest (param $x i32) (result v128)
    (f32x4.max
      (f32x4.max
        (f32x4.abs (v128.load (local.get $x)))
        (f32x4.abs (v128.load offset=16 (local.get $x))))
      (f32x4.max
        (f32x4.abs (v128.load offset=32 (local.get $x)))
        (f32x4.abs (v128.load offset=48 (local.get $x))))))

  ;; Write the codes of sixteen numbers; returns four parts of their sum.
  (func $codes (param $x i32) (param $to i32) (param $inverse v128) (result v128)
    (local $codes v128)
    (local.set $codes (i8x16.narrow_i16x8_s
      (i16x8.narrow_i32x4_s
        (call $nearest (v128.load (local.get $x)) (local.get $inverse))
        (call $nearest (v128.load offset=16 (local.get $x)) (local.get $inverse)))
      (i16x8.narrow_i32x4_s
        (call $nearest (v128.load offset=32 (local.get $x)) (local.get $inverse))
        (call $nearest (v128.load offset=48 (local.get $x)) (local.get $inverse)))))
    (v128.store (local.get $to) (local.get $codes))
    (i32x4.extadd_pairwise_i16x8_s (i16x8.extadd_pairwise_i8x16_s (local.get $codes))))

  (func $nearest (param $x v128) (param $inverse v128) (result v128)
    (i32x4.trunc_sat_f32x4_s (f32x4.nearest (f32x4.mul (local.get $x) (local.get $inverse)))))

  ;; The sum, four by four, and products of codes of x with codes of 7 bits. Where the browser has
  ;; relaxed SIMD, its one instruction for that stands in the calls' place: see book/bundle.py.
  (func $dot (param $x v128) (param $codes v128) (param $sum v128) (result v128)
    (i32x4.add (local.get $sum)
      (i32x4.add
        (i32x4.dot_i16x8_s
          (i16x8.extend_low_i8x16_s (local.get $x)) (i16x8.extend_low_i8x16_s (local.get $codes)))
        (i32x4.dot_i16x8_s
          (i16x8.extend_high_i8x16_s (local.get $x))
          (i16x8.extend_high_i8x16_s (local.get $codes))))))

  ;; Whether that instruction takes x for the signed side: in V8 11.3 the sides were swapped.
  (func (export "dot_is_right") (result i32)
    (i32.eq (i32.const -4)
      (i32x4.extract_lane 0
        (call $dot (i8x16.splat (i32.const -1)) (i8x16.splat (i32.const 1))
          (i8x16.splat (i32.const 0))))))

  ;; x is rounded in both.

  (func $q8_0_rounded (type $dots)
    (param $x i32) (param $bytes i32) (param $block i32)
    (param $w i32) (param $w1 i32) (param $w2 i32) (param $w3 i32) (result v128)
    (local $end i32) (local $x0 v128) (local $x1 v128) (local $x2 v128) (local $x3 v128)
    (local $s0 v128) (local $s1 v128) (local $s2 v128) (local $s3 v128)
    (local $scale v128) (local $y v128) (local $zero v128)
    (local.set $end (i32.add (local.get $w) (local.get $bytes)))
    (loop $blocks
      (local.set $x0 (v128.load8x8_s (local.get $x)))
      (local.set $x1 (v128.load8x8_s offset=8 (local.get $x)))
      (local.set $x2 (v128.load8x8_s offset=16 (local.get $x)))
      (local.set $x3 (v128.load8x8_s offset=24 (local.get $x)))
      (local.set $s0 (i32x4.add
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x0) (v128.load8x8_s offset=2 (local.get $w)))
          (i32x4.dot_i16x8_s (local.get $x1) (v128.load8x8_s offset=10 (local.get $w))))
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x2) (v128.load8x8_s offset=18 (local.get $w)))
          (i32x4.dot_i16x8_s (local.get $x3) (v128.load8x8_s offset=26 (local.get $w))))))
      (local.set $s1 (i32x4.add
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x0) (v128.load8x8_s offset=2 (local.get $w1)))
          (i32x4.dot_i16x8_s (local.get $x1) (v128.load8x8_s offset=10 (local.get $w1))))
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x2) (v128.load8x8_s offset=18 (local.get $w1)))
          (i32x4.dot_i16x8_s (local.get $x3) (v128.load8x8_s offset=26 (local.get $w1))))))
      (local.set $s2 (i32x4.add
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x0) (v128.load8x8_s offset=2 (local.get $w2)))
          (i32x4.dot_i16x8_s (local.get $x1) (v128.load8x8_s offset=10 (local.get $w2))))
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x2) (v128.load8x8_s offset=18 (local.get $w2)))
          (i32x4.dot_i16x8_s (local.get $x3) (v128.load8x8_s offset=26 (local.get $w2))))))
      (local.set $s3 (i32x4.add
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x0) (v128.load8x8_s offset=2 (local.get $w3)))
          (i32x4.dot_i16x8_s (local.get $x1) (v128.load8x8_s offset=10 (local.get $w3))))
        (i32x4.add
          (i32x4.dot_i16x8_s (local.get $x2) (v128.load8x8_s offset=18 (local.get $w3)))
          (i32x4.dot_i16x8_s (local.get $x3) (v128.load8x8_s offset=26 (local.get $w3))))))
      (local.set $s0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $s0) (local.get $s1))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $s0) (local.get $s1))))
      (local.set $s2 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $s2) (local.get $s3))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $s2) (local.get $s3))))
      (local.set $s0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $s0) (local.get $s2))
        (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31
          (local.get $s0) (local.get $s2))))
      (local.set $scale (call $halves
        (v128.load16_lane 6 (local.get $w3)
          (v128.load16_lane 4 (local.get $w2)
            (v128.load16_lane 2 (local.get $w1)
              (v128.load16_lane 0 (local.get $w) (local.get $zero)))))))
      (local.set $y (f32x4.add (local.get $y)
        (f32x4.mul (f32x4.convert_i32x4_s (local.get $s0))
          (f32x4.mul (v128.load32_splat offset=32 (local.get $x)) (local.get $scale)))))
      (local.set $x (i32.add (local.get $x) (i32.const 40)))
      (local.set $w (i32.add (local.get $w) (i32.const 34)))
      (local.set $w1 (i32.add (local.get $w1) (i32.const 34)))
      (local.set $w2 (i32.add (local.get $w2) (i32.const 34)))
      (local.set $w3 (i32.add (local.get $w3) (i32.const 34)))
      (br_if $blocks (i32.lt_u (local.get $w) (local.get $end))))
    (local.get $y))

  (func $q4_rounded (type $dots)
    (param $x i32) (param $bytes i32) (param $block i32)
    (param $w i32) (param $w1 i32) (param $w2 i32) (param $w3 i32) (result v128)
    (local $end i32) (local $codes i32) (local $low v128) (local $high v128) (local $v v128)
    (local $mask v128)
    (local $s0 v128) (local $s1 v128) (local $s2 v128) (local $s3 v128)
    (local $both v128) (local $bits v128) (local $factor v128) (local $minus_eight v128)
    (local $scale v128) (local $offset v128) (local $y v128) (local $zero v128)
    (local.set $mask (i8x16.splat (i32.const 15)))
    (local.set $bits (i32x4.splat (i32.const 0x8fffe000)))
    (local.set $factor (f32x4.splat (f32.const 0x1p112)))
    (local.set $minus_eight (f32x4.splat (f32.const -8)))
    (local.set $codes (i32.sub (local.get $block) (i32.const 16)))
    (local.set $end (i32.add (local.get $w) (local.get $bytes)))
    (loop $blocks
      (local.set $low (v128.load (local.get $x)))
      (local.set $high (v128.load offset=16 (local.get $x)))
      (local.set $v (v128.load (i32.add (local.get $w) (local.get $codes))))
      (local.set $s0 (call $dot (local.get $high)
        (v128.and (i16x8.shr_u (local.get $v) (i32.const 4)) (local.get $mask))
        (call $dot (local.get $low) (v128.and (local.get $v) (local.get $mask)) (local.get $zero))))
      (local.set $v (v128.load (i32.add (local.get $w1) (local.get $codes))))
      (local.set $s1 (call $dot (local.get $high)
        (v128.and (i16x8.shr_u (local.get $v) (i32.const 4)) (local.get $mask))
        (call $dot (local.get $low) (v128.and (local.get $v) (local.get $mask)) (local.get $zero))))
      (local.set $v (v128.load (i32.add (local.get $w2) (local.get $codes))))
      (local.set $s2 (call $dot (local.get $high)
        (v128.and (i16x8.shr_u (local.get $v) (i32.const 4)) (local.get $mask))
        (call $dot (local.get $low) (v128.and (local.get $v) (local.get $mask)) (local.get $zero))))
      (local.set $v (v128.load (i32.add (local.get $w3) (local.get $codes))))
      (local.set $s3 (call $dot (local.get $high)
        (v128.and (i16x8.shr_u (local.get $v) (i32.const 4)) (local.get $mask))
        (call $dot (local.get $low) (v128.and (local.get $v) (local.get $mask)) (local.get $zero))))
      (local.set $s0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $s0) (local.get $s1))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $s0) (local.get $s1))))
      (local.set $s2 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $s2) (local.get $s3))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $s2) (local.get $s3))))
      (local.set $s0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $s0) (local.get $s2))
        (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31
          (local.get $s0) (local.get $s2))))
      (local.set $both
        (v128.load32_lane 3 (local.get $w3)
          (v128.load32_lane 2 (local.get $w2)
            (v128.load32_lane 1 (local.get $w1) (v128.load32_zero (local.get $w))))))
      (local.set $scale (f32x4.mul (local.get $factor)
        (v128.and (local.get $bits)
          (i32x4.shr_s (i32x4.shl (local.get $both) (i32.const 16)) (i32.const 3)))))
      (local.set $scale (f32x4.add (local.get $scale)
        (f32x4.mul (f32x4.mul (local.get $scale) (local.get $factor)) (local.get $zero))))
      (if (i32.eq (local.get $block) (i32.const 20))
        (then
          (local.set $offset (f32x4.mul (local.get $factor)
            (v128.and (local.get $bits) (i32x4.shr_s (local.get $both) (i32.const 3)))))
          (local.set $offset (f32x4.add (local.get $offset)
            (f32x4.mul (f32x4.mul (local.get $offset) (local.get $factor)) (local.get $zero)))))
        (else
          (local.set $offset (f32x4.mul (local.get $scale) (local.get $minus_eight)))))
      (local.set $y (f32x4.add (local.get $y)
        (f32x4.mul (f32x4.convert_i32x4_s (local.get $s0))
          (f32x4.mul (v128.load32_splat offset=32 (local.get $x)) (local.get $scale)))))
      (local.set $y (f32x4.add (local.get $y)
        (f32x4.mul (v128.load32_splat offset=36 (local.get $x)) (local.get $offset))))
      (local.set $x (i32.add (local.get $x) (i32.const 40)))
      (local.set $w (i32.add (local.get $w) (local.get $block)))
      (local.set $w1 (i32.add (local.get $w1) (local.get $block)))
      (local.set $w2 (i32.add (local.get $w2) (local.get $block)))
      (local.set $w3 (i32.add (local.get $w3) (local.get $block)))
      (br_if $blocks (i32.lt_u (local.get $w) (local.get $end))))
    (local.get $y))

  ;; Four rows of rounded x, two of q4 at a time; where one is left, it is taken twice.
  (func $fours_rounded
    (param $x i32) (param $rows i32) (param $in i32) (param $w i32) (param $bytes i32)
    (param $block i32) (param $n i32) (param $y i32) (param $room i32)
    (local $row i32) (local $at i32) (local $to i32) (local $stride i32) (local $size i32)
    (local $w1 i32) (local $w_last i32) (local $y_last i32)
    (local.set $size (i32.mul (i32.shr_u (local.get $in) (i32.const 5)) (i32.const 160)))
    (loop $next
      (local.set $at (i32.add (local.get $room)
        (i32.mul (local.get $size) (i32.shr_u (local.get $row) (i32.const 2)))))
      (local.set $to (i32.and (local.get $row) (i32.const 3)))
      (call $round
        (i32.add (local.get $x)
          (i32.mul (local.get $row) (i32.shl (local.get $in) (i32.const 2))))
        (local.get $in)
        (i32.add (local.get $at) (i32.shl (local.get $to) (i32.const 5)))
        (i32.add (local.get $at)
          (i32.add (i32.const 128) (i32.shl (local.get $to) (i32.const 2))))
        (i32.const 4))
      (local.set $row (i32.add (local.get $row) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $row) (local.get $rows))))
    (local.set $stride (i32.shl (local.get $n) (i32.const 2)))
    (local.set $n (i32.sub (local.get $n) (i32.const 1)))
    (local.set $w_last (i32.add (local.get $w) (i32.mul (local.get $n) (local.get $bytes))))
    (local.set $y_last (i32.add (local.get $y) (i32.shl (local.get $n) (i32.const 2))))
    (loop $outputs
      (local.set $w1 (call $least (i32.add (local.get $w) (local.get $bytes)) (local.get $w_last)))
      (local.set $at (local.get $room))
      (local.set $row (i32.const 0))
      (loop $groups
        (local.set $to (i32.mul (local.get $row) (local.get $stride)))
        (call $four_rounded (local.get $at) (local.get $bytes) (local.get $block)
          (local.get $w) (local.get $w1)
          (i32.add (local.get $to) (local.get $y))
          (i32.add (local.get $to)
            (call $least (i32.add (local.get $y) (i32.const 4)) (local.get $y_last)))
          (local.get $stride))
        (local.set $at (i32.add (local.get $at) (local.get $size)))
        (local.set $row (i32.add (local.get $row) (i32.const 4)))
        (br_if $groups (i32.lt_u (local.get $row) (local.get $rows))))
      (local.set $w (i32.add (local.get $w1) (local.get $bytes)))
      (local.set $y (i32.add (local.get $y) (i32.const 8)))
      (br_if $outputs (i32.le_u (local.get $y) (local.get $y_last)))))

  (func $four_rounded
    (param $x i32) (param $bytes i32) (param $block i32) (param $w i32) (param $w1 i32)
    (param $y i32) (param $y1 i32) (param $stride i32)
    (local $end i32) (local $codes i32) (local $t v128) (local $mask v128)
    (local $low v128) (local $low1 v128) (local $high v128) (local $high1 v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local $b0 v128) (local $b1 v128) (local $b2 v128) (local $b3 v128)
    (local $sum v128) (local $sum1 v128) (local $d v128) (local $scales v128) (local $sums v128)
    (local $zero v128)
    (local.set $mask (i8x16.splat (i32.const 15)))
    (local.set $codes (i32.sub (local.get $block) (i32.const 16)))
    (local.set $end (i32.add (local.get $w) (local.get $bytes)))
    (loop $blocks
      (local.set $t (v128.load (i32.add (local.get $w) (local.get $codes))))
      (local.set $low (v128.and (local.get $t) (local.get $mask)))
      (local.set $high (v128.and (i16x8.shr_u (local.get $t) (i32.const 4)) (local.get $mask)))
      (local.set $t (v128.load (i32.add (local.get $w1) (local.get $codes))))
      (local.set $low1 (v128.and (local.get $t) (local.get $mask)))
      (local.set $high1 (v128.and (i16x8.shr_u (local.get $t) (i32.const 4)) (local.get $mask)))
      (local.set $t (v128.load offset=0 (local.get $x)))
      (local.set $a0 (call $dot (local.get $t) (local.get $low) (local.get $zero)))
      (local.set $b0 (call $dot (local.get $t) (local.get $low1) (local.get $zero)))
      (local.set $t (v128.load offset=16 (local.get $x)))
      (local.set $a0 (call $dot (local.get $t) (local.get $high) (local.get $a0)))
      (local.set $b0 (call $dot (local.get $t) (local.get $high1) (local.get $b0)))
      (local.set $t (v128.load offset=32 (local.get $x)))
      (local.set $a1 (call $dot (local.get $t) (local.get $low) (local.get $zero)))
      (local.set $b1 (call $dot (local.get $t) (local.get $low1) (local.get $zero)))
      (local.set $t (v128.load offset=48 (local.get $x)))
      (local.set $a1 (call $dot (local.get $t) (local.get $high) (local.get $a1)))
      (local.set $b1 (call $dot (local.get $t) (local.get $high1) (local.get $b1)))
      (local.set $t (v128.load offset=64 (local.get $x)))
      (local.set $a2 (call $dot (local.get $t) (local.get $low) (local.get $zero)))
      (local.set $b2 (call $dot (local.get $t) (local.get $low1) (local.get $zero)))
      (local.set $t (v128.load offset=80 (local.get $x)))
      (local.set $a2 (call $dot (local.get $t) (local.get $high) (local.get $a2)))
      (local.set $b2 (call $dot (local.get $t) (local.get $high1) (local.get $b2)))
      (local.set $t (v128.load offset=96 (local.get $x)))
      (local.set $a3 (call $dot (local.get $t) (local.get $low) (local.get $zero)))
      (local.set $b3 (call $dot (local.get $t) (local.get $low1) (local.get $zero)))
      (local.set $t (v128.load offset=112 (local.get $x)))
      (local.set $a3 (call $dot (local.get $t) (local.get $high) (local.get $a3)))
      (local.set $b3 (call $dot (local.get $t) (local.get $high1) (local.get $b3)))
      (local.set $a0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $a0) (local.get $a1))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $a0) (local.get $a1))))
      (local.set $a2 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $a2) (local.get $a3))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $a2) (local.get $a3))))
      (local.set $a0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $a0) (local.get $a2))
        (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31
          (local.get $a0) (local.get $a2))))
      (local.set $b0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $b0) (local.get $b1))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $b0) (local.get $b1))))
      (local.set $b2 (i32x4.add
        (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $b2) (local.get $b3))
        (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31
          (local.get $b2) (local.get $b3))))
      (local.set $b0 (i32x4.add
        (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $b0) (local.get $b2))
        (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31
          (local.get $b0) (local.get $b2))))
      ;; Scale and offset of one, of the other.
      (local.set $d (call $halves (i32x4.extend_low_i16x8_u
        (v128.load32_lane 1 (local.get $w1) (v128.load32_zero (local.get $w))))))
      (if (i32.ne (local.get $block) (i32.const 20))
        (then (local.set $d (f32x4.mul (v128.const f32x4 1 -8 1 -8)
          (i8x16.shuffle 0 1 2 3 0 1 2 3 8 9 10 11 8 9 10 11 (local.get $d) (local.get $d))))))
      (local.set $scales (v128.load offset=128 (local.get $x)))
      (local.set $sums (v128.load offset=144 (local.get $x)))
      (local.set $sum (f32x4.add (local.get $sum)
        (f32x4.mul (f32x4.convert_i32x4_s (local.get $a0))
          (f32x4.mul (local.get $scales)
            (i8x16.shuffle 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3
              (local.get $d) (local.get $d))))))
      (local.set $sum (f32x4.add (local.get $sum)
        (f32x4.mul (local.get $sums)
          (i8x16.shuffle 4 5 6 7 4 5 6 7 4 5 6 7 4 5 6 7
            (local.get $d) (local.get $d)))))
      (local.set $sum1 (f32x4.add (local.get $sum1)
        (f32x4.mul (f32x4.convert_i32x4_s (local.get $b0))
          (f32x4.mul (local.get $scales)
            (i8x16.shuffle 8 9 10 11 8 9 10 11 8 9 10 11 8 9 10 11
              (local.get $d) (local.get $d))))))
      (local.set $sum1 (f32x4.add (local.get $sum1)
        (f32x4.mul (local.get $sums)
          (i8x16.shuffle 12 13 14 15 12 13 14 15 12 13 14 15 12 13 14 15
            (local.get $d) (local.get $d)))))
      (local.set $x (i32.add (local.get $x) (i32.const 160)))
      (local.set $w (i32.add (local.get $w) (local.get $block)))
      (local.set $w1 (i32.add (local.get $w1) (local.get $block)))
      (br_if $blocks (i32.lt_u (local.get $w) (local.get $end))))
    (call $column (local.get $y) (local.get $stride) (local.get $sum))
    (call $column (local.get $y1) (local.get $stride) (local.get $sum1)))

  ;; The sum of the four numbers of a, of b, of c, of d.
  (func $sums (param $a v128) (param $b v128) (param $c v128) (param $d v128) (result v128)
    (local $ab v128) (local $cd v128)
    (local.set $ab (f32x4.add
      (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $a) (local.get $b))
      (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $a) (local.get $b))))
    (local.set $cd (f32x4.add
      (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $c) (local.get $d))
      (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $c) (local.get $d))))
    (f32x4.add
      (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $ab) (local.get $cd))
      (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31
        (local.get $ab) (local.get $cd)))))

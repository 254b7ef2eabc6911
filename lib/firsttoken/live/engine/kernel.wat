;; What takes the time in a pass, four numbers at a time: products with the weights, attention and
;; the gate of the MLP. Addresses are bytes; all activations are f32.
;;
;; Weights stay bf16, two bytes each: a bf16 is the upper half of an f32, so unpacking is a shift
;; or a mask. For that, eight neighbours lie in the order 0 4 1 5 2 6 3 7 (see `interleave`): shift
;; the four 32-bit lanes left, and they are 0 1 2 3; mask their lower halves away: 4 5 6 7.
;; Unpacked once and for all to f32, weights take twice the memory and gain nothing: measured in
;; Chromium 150 on an EPYC, one row 10.9 instead of 15.7 billion products per second, four rows
;; 18.9 either way.
(module
  (memory (export "memory") 1)

  (func (export "interleave") (param $at i32) (param $end i32)
    (local $w v128)
    (loop $next
      (local.set $w (v128.load (local.get $at)))
      (v128.store (local.get $at)
        (i8x16.shuffle 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15 (local.get $w) (local.get $w)))
      (local.set $at (i32.add (local.get $at) (i32.const 16)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end)))))

  ;; y [rows, out] = x [rows, in] · weights [out, in]ᵀ. Four rows at a time, so that a weight is
  ;; loaded and unpacked once for them; what is left goes row by row.
  (func (export "product")
    (param $x i32) (param $rows i32) (param $w i32) (param $in i32) (param $out i32) (param $y i32)
    (local $row i32)
    (block $rest
      (br_if $rest (i32.lt_u (local.get $rows) (i32.const 4)))
      (call $four (local.get $x) (i32.and (local.get $rows) (i32.const -4)) (local.get $w)
        (local.get $in) (local.get $out) (local.get $y)))
    (local.set $row (i32.and (local.get $rows) (i32.const -4)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $row) (local.get $rows)))
        (call $one
          (i32.add (local.get $x)
            (i32.shl (i32.mul (local.get $row) (local.get $in)) (i32.const 2)))
          (local.get $w) (local.get $in) (local.get $out)
          (i32.add (local.get $y)
            (i32.shl (i32.mul (local.get $row) (local.get $out)) (i32.const 2))))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next))))

  ;; One row of x, four rows of weights at a time.
  (func $one (param $x i32) (param $w i32) (param $in i32) (param $out i32) (param $y i32)
    (local $end i32) (local $i i32) (local $w1 i32) (local $w2 i32) (local $w3 i32)
    (local $stride i32)
    (local $low v128) (local $high v128) (local $packed v128) (local $mask v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local $b0 v128) (local $b1 v128) (local $b2 v128) (local $b3 v128)
    (local.set $mask (v128.const i32x4 -65536 -65536 -65536 -65536))
    (local.set $stride (i32.shl (local.get $in) (i32.const 1)))
    (local.set $end (i32.add (local.get $y) (i32.shl (local.get $out) (i32.const 2))))
    (loop $outputs
      (local.set $w1 (i32.add (local.get $w) (local.get $stride)))
      (local.set $w2 (i32.add (local.get $w1) (local.get $stride)))
      (local.set $w3 (i32.add (local.get $w2) (local.get $stride)))
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
        (local.set $low (v128.load (i32.add (local.get $x) (i32.shl (local.get $i) (i32.const 1)))))
        (local.set $high
          (v128.load offset=16 (i32.add (local.get $x) (i32.shl (local.get $i) (i32.const 1)))))
        (local.set $packed (v128.load (i32.add (local.get $w) (local.get $i))))
        (local.set $a0 (f32x4.add (local.get $a0)
          (f32x4.mul (local.get $low) (i32x4.shl (local.get $packed) (i32.const 16)))))
        (local.set $b0 (f32x4.add (local.get $b0)
          (f32x4.mul (local.get $high) (v128.and (local.get $packed) (local.get $mask)))))
        (local.set $packed (v128.load (i32.add (local.get $w1) (local.get $i))))
        (local.set $a1 (f32x4.add (local.get $a1)
          (f32x4.mul (local.get $low) (i32x4.shl (local.get $packed) (i32.const 16)))))
        (local.set $b1 (f32x4.add (local.get $b1)
          (f32x4.mul (local.get $high) (v128.and (local.get $packed) (local.get $mask)))))
        (local.set $packed (v128.load (i32.add (local.get $w2) (local.get $i))))
        (local.set $a2 (f32x4.add (local.get $a2)
          (f32x4.mul (local.get $low) (i32x4.shl (local.get $packed) (i32.const 16)))))
        (local.set $b2 (f32x4.add (local.get $b2)
          (f32x4.mul (local.get $high) (v128.and (local.get $packed) (local.get $mask)))))
        (local.set $packed (v128.load (i32.add (local.get $w3) (local.get $i))))
        (local.set $a3 (f32x4.add (local.get $a3)
          (f32x4.mul (local.get $low) (i32x4.shl (local.get $packed) (i32.const 16)))))
        (local.set $b3 (f32x4.add (local.get $b3)
          (f32x4.mul (local.get $high) (v128.and (local.get $packed) (local.get $mask)))))
        (local.set $i (i32.add (local.get $i) (i32.const 16)))
        (br_if $inputs (i32.lt_u (local.get $i) (local.get $stride))))
      (v128.store (local.get $y)
        (call $sums
          (f32x4.add (local.get $a0) (local.get $b0)) (f32x4.add (local.get $a1) (local.get $b1))
          (f32x4.add (local.get $a2) (local.get $b2)) (f32x4.add (local.get $a3) (local.get $b3))))
      (local.set $w (i32.add (local.get $w3) (local.get $stride)))
      (local.set $y (i32.add (local.get $y) (i32.const 16)))
      (br_if $outputs (i32.lt_u (local.get $y) (local.get $end)))))

  ;; Four rows of x at a time, two rows of weights at a time: what these two make of all of x is
  ;; done before the next two are read.
  (func $four (param $x i32) (param $rows i32) (param $w i32) (param $in i32) (param $out i32)
    (param $y i32)
    (local $x_end i32) (local $w_end i32) (local $at i32) (local $to i32) (local $i i32)
    (local $w_stride i32) (local $x_stride i32) (local $y_stride i32)
    (local $x0 i32) (local $x1 i32) (local $x2 i32) (local $x3 i32) (local $w0 i32) (local $w1 i32)
    (local $low v128) (local $high v128) (local $low1 v128) (local $high1 v128) (local $v v128)
    (local $mask v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local $b0 v128) (local $b1 v128) (local $b2 v128) (local $b3 v128)
    (local.set $mask (v128.const i32x4 -65536 -65536 -65536 -65536))
    (local.set $w_stride (i32.shl (local.get $in) (i32.const 1)))
    (local.set $x_stride (i32.shl (local.get $in) (i32.const 2)))
    (local.set $y_stride (i32.shl (local.get $out) (i32.const 2)))
    (local.set $x_end
      (i32.add (local.get $x) (i32.mul (local.get $rows) (local.get $x_stride))))
    (local.set $w_end
      (i32.add (local.get $w) (i32.mul (local.get $out) (local.get $w_stride))))
    (loop $outputs
      (local.set $at (local.get $x))
      (local.set $to (local.get $y))
      (loop $rows
        (local.set $x0 (local.get $at))
        (local.set $x1 (i32.add (local.get $x0) (local.get $x_stride)))
        (local.set $x2 (i32.add (local.get $x1) (local.get $x_stride)))
        (local.set $x3 (i32.add (local.get $x2) (local.get $x_stride)))
        (local.set $at (i32.add (local.get $x3) (local.get $x_stride)))
        (local.set $w0 (local.get $w))
        (local.set $w1 (i32.add (local.get $w) (local.get $w_stride)))
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
          (local.set $v (v128.load (local.get $w0)))
          (local.set $low (i32x4.shl (local.get $v) (i32.const 16)))
          (local.set $high (v128.and (local.get $v) (local.get $mask)))
          (local.set $v (v128.load (local.get $w1)))
          (local.set $low1 (i32x4.shl (local.get $v) (i32.const 16)))
          (local.set $high1 (v128.and (local.get $v) (local.get $mask)))
          (local.set $v (v128.load (i32.add (local.get $x0) (local.get $i))))
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
          (local.set $v (v128.load offset=16 (i32.add (local.get $x0) (local.get $i))))
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
          (local.set $w0 (i32.add (local.get $w0) (i32.const 16)))
          (local.set $w1 (i32.add (local.get $w1) (i32.const 16)))
          (local.set $i (i32.add (local.get $i) (i32.const 32)))
          (br_if $inputs (i32.lt_u (local.get $i) (local.get $x_stride))))
        (local.set $v
          (call $sums (local.get $a0) (local.get $b0) (local.get $a1) (local.get $b1)))
        (v128.store64_lane 0 (local.get $to) (local.get $v))
        (local.set $to (i32.add (local.get $to) (local.get $y_stride)))
        (v128.store64_lane 1 (local.get $to) (local.get $v))
        (local.set $to (i32.add (local.get $to) (local.get $y_stride)))
        (local.set $v
          (call $sums (local.get $a2) (local.get $b2) (local.get $a3) (local.get $b3)))
        (v128.store64_lane 0 (local.get $to) (local.get $v))
        (local.set $to (i32.add (local.get $to) (local.get $y_stride)))
        (v128.store64_lane 1 (local.get $to) (local.get $v))
        (local.set $to (i32.add (local.get $to) (local.get $y_stride)))
        (br_if $rows (i32.lt_u (local.get $at) (local.get $x_end))))
      (local.set $w (local.get $w1))
      (local.set $y (i32.add (local.get $y) (i32.const 8)))
      (br_if $outputs (i32.lt_u (local.get $w) (local.get $w_end)))))

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
        (local.get $ab) (local.get $cd))))

  ;; One query head: softmax(q · keys) weighs the values. Keys lie in blocks of sixteen positions,
  ;; in a block feature by feature, [dim, 16], so that sixteen are compared at once and no sum runs
  ;; across lanes; values lie position by position, [n, dim]. `weights` keeps the n numbers before
  ;; they are divided by their sum, which is returned; sixteen places behind are written, too.
  (func (export "attend")
    (param $q i32) (param $keys i32) (param $values i32) (param $n i32) (param $dim i32)
    (param $weights i32) (param $out i32) (result f32)
    (local $end i32) (local $at i32) (local $feature i32) (local $q_end i32) (local $stride i32)
    (local $value i32) (local $total f32) (local $v v128) (local $peak v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128)
    (local.set $end (i32.add (local.get $weights) (i32.shl (local.get $n) (i32.const 2))))
    (local.set $stride (i32.shl (local.get $dim) (i32.const 2)))
    (local.set $q_end (i32.add (local.get $q) (local.get $stride)))
    (local.set $at (local.get $weights))
    (loop $blocks
      (local.set $a0 (v128.const f32x4 0 0 0 0))
      (local.set $a1 (v128.const f32x4 0 0 0 0))
      (local.set $a2 (v128.const f32x4 0 0 0 0))
      (local.set $a3 (v128.const f32x4 0 0 0 0))
      (local.set $feature (local.get $q))
      (loop $features
        (local.set $v (v128.load32_splat (local.get $feature)))
        (local.set $a0
          (f32x4.add (local.get $a0) (f32x4.mul (local.get $v) (v128.load (local.get $keys)))))
        (local.set $a1 (f32x4.add (local.get $a1)
          (f32x4.mul (local.get $v) (v128.load offset=16 (local.get $keys)))))
        (local.set $a2 (f32x4.add (local.get $a2)
          (f32x4.mul (local.get $v) (v128.load offset=32 (local.get $keys)))))
        (local.set $a3 (f32x4.add (local.get $a3)
          (f32x4.mul (local.get $v) (v128.load offset=48 (local.get $keys)))))
        (local.set $keys (i32.add (local.get $keys) (i32.const 64)))
        (local.set $feature (i32.add (local.get $feature) (i32.const 4)))
        (br_if $features (i32.lt_u (local.get $feature) (local.get $q_end))))
      (v128.store (local.get $at) (local.get $a0))
      (v128.store offset=16 (local.get $at) (local.get $a1))
      (v128.store offset=32 (local.get $at) (local.get $a2))
      (v128.store offset=48 (local.get $at) (local.get $a3))
      (local.set $at (i32.add (local.get $at) (i32.const 64)))
      (br_if $blocks (i32.lt_u (local.get $at) (local.get $end))))
    ;; What lies behind the last position was compared as well, and weighs nothing.
    (local.set $v (v128.const f32x4 -inf -inf -inf -inf))
    (v128.store (local.get $end) (local.get $v))
    (v128.store offset=16 (local.get $end) (local.get $v))
    (v128.store offset=32 (local.get $end) (local.get $v))
    (v128.store offset=48 (local.get $end) (local.get $v))

    (local.set $peak (local.get $v))
    (local.set $at (local.get $weights))
    (loop $peaks
      (local.set $peak (f32x4.max (local.get $peak) (v128.load (local.get $at))))
      (local.set $at (i32.add (local.get $at) (i32.const 16)))
      (br_if $peaks (i32.lt_u (local.get $at) (local.get $end))))
    (local.set $peak (f32x4.max (local.get $peak)
      (i8x16.shuffle 8 9 10 11 12 13 14 15 0 1 2 3 4 5 6 7 (local.get $peak) (local.get $peak))))
    (local.set $peak (f32x4.max (local.get $peak)
      (i8x16.shuffle 4 5 6 7 0 1 2 3 12 13 14 15 8 9 10 11 (local.get $peak) (local.get $peak))))

    (local.set $total (call $exps (local.get $weights) (local.get $end) (local.get $weights)
      (v128.const f32x4 1 1 1 1) (local.get $peak)))

    ;; Sixteen features of the values at a time.
    (local.set $feature (i32.const 0))
    (loop $parts
      (local.set $a0 (v128.const f32x4 0 0 0 0))
      (local.set $a1 (v128.const f32x4 0 0 0 0))
      (local.set $a2 (v128.const f32x4 0 0 0 0))
      (local.set $a3 (v128.const f32x4 0 0 0 0))
      (local.set $at (local.get $weights))
      (local.set $value (i32.add (local.get $values) (local.get $feature)))
      (loop $positions
        (local.set $v (v128.load32_splat (local.get $at)))
        (local.set $a0
          (f32x4.add (local.get $a0) (f32x4.mul (local.get $v) (v128.load (local.get $value)))))
        (local.set $a1 (f32x4.add (local.get $a1)
          (f32x4.mul (local.get $v) (v128.load offset=16 (local.get $value)))))
        (local.set $a2 (f32x4.add (local.get $a2)
          (f32x4.mul (local.get $v) (v128.load offset=32 (local.get $value)))))
        (local.set $a3 (f32x4.add (local.get $a3)
          (f32x4.mul (local.get $v) (v128.load offset=48 (local.get $value)))))
        (local.set $value (i32.add (local.get $value) (local.get $stride)))
        (local.set $at (i32.add (local.get $at) (i32.const 4)))
        (br_if $positions (i32.lt_u (local.get $at) (local.get $end))))
      (local.set $v (f32x4.splat (local.get $total)))
      (v128.store (local.get $out) (f32x4.div (local.get $a0) (local.get $v)))
      (v128.store offset=16 (local.get $out) (f32x4.div (local.get $a1) (local.get $v)))
      (v128.store offset=32 (local.get $out) (f32x4.div (local.get $a2) (local.get $v)))
      (v128.store offset=48 (local.get $out) (f32x4.div (local.get $a3) (local.get $v)))
      (local.set $out (i32.add (local.get $out) (i32.const 64)))
      (local.set $feature (i32.add (local.get $feature) (i32.const 64)))
      (br_if $parts (i32.lt_u (local.get $feature) (local.get $stride))))
    (local.get $total))

  ;; gate = silu(gate) · up = gate · up / (1 + exp(-gate)) for the numbers from `gate` to `end`;
  ;; `exps` has room for as many.
  (func (export "swiglu") (param $gate i32) (param $end i32) (param $up i32) (param $exps i32)
    (drop (call $exps (local.get $gate) (local.get $end) (local.get $exps)
      (v128.const f32x4 -1 -1 -1 -1) (v128.const f32x4 0 0 0 0)))
    (loop $next
      (v128.store (local.get $gate)
        (f32x4.div
          (f32x4.mul (v128.load (local.get $gate)) (v128.load (local.get $up)))
          (f32x4.add (f32x4.splat (f32.const 1)) (v128.load (local.get $exps)))))
      (local.set $gate (i32.add (local.get $gate) (i32.const 16)))
      (local.set $up (i32.add (local.get $up) (i32.const 16)))
      (local.set $exps (i32.add (local.get $exps) (i32.const 16)))
      (br_if $next (i32.lt_u (local.get $gate) (local.get $end)))))

  ;; exp(sign · x - peak) of the numbers from `x` to `end`, written to `y`; returns their sum.
  ;; exp(x) = 2ⁿ · exp(r), with n the whole number nearest to x / ln 2, and a polynomial for exp(r).
  ;; Beyond ±87 the result stays at the ends of what an f32 holds. Source: Cephes, expf.c
  ;; Constants are in locals, since V8 builds a v128.const anew wherever it stands in a loop.
  (func $exps (param $x i32) (param $end i32) (param $y i32) (param $sign v128) (param $peak v128)
    (result f32)
    (local $r v128) (local $n v128) (local $p v128) (local $sum v128)
    (local $most v128) (local $least v128) (local $per_ln2 v128) (local $ln2 v128)
    (local $ln2_rest v128) (local $p5 v128) (local $p4 v128) (local $p3 v128) (local $p2 v128)
    (local $p1 v128) (local $p0 v128) (local $one v128) (local $bias v128)
    (local.set $most (f32x4.splat (f32.const 87)))
    (local.set $least (f32x4.splat (f32.const -87)))
    (local.set $per_ln2 (f32x4.splat (f32.const 1.44269504)))
    ;; ln 2 in two parts: n times the first is exact.
    (local.set $ln2 (f32x4.splat (f32.const 0.693359375)))
    (local.set $ln2_rest (f32x4.splat (f32.const -2.12194440e-4)))
    (local.set $p5 (f32x4.splat (f32.const 1.9875691500e-4)))
    (local.set $p4 (f32x4.splat (f32.const 1.3981999507e-3)))
    (local.set $p3 (f32x4.splat (f32.const 8.3334519073e-3)))
    (local.set $p2 (f32x4.splat (f32.const 4.1665795894e-2)))
    (local.set $p1 (f32x4.splat (f32.const 1.6666665459e-1)))
    (local.set $p0 (f32x4.splat (f32.const 5.0000001201e-1)))
    (local.set $one (f32x4.splat (f32.const 1)))
    (local.set $bias (i32x4.splat (i32.const 127)))
    (loop $next
      (local.set $r
        (f32x4.sub (f32x4.mul (local.get $sign) (v128.load (local.get $x))) (local.get $peak)))
      (local.set $r
        (f32x4.pmax (f32x4.pmin (local.get $r) (local.get $most)) (local.get $least)))
      (local.set $n (f32x4.nearest (f32x4.mul (local.get $r) (local.get $per_ln2))))
      (local.set $r (f32x4.sub (local.get $r) (f32x4.mul (local.get $n) (local.get $ln2))))
      (local.set $r (f32x4.sub (local.get $r) (f32x4.mul (local.get $n) (local.get $ln2_rest))))
      (local.set $p (f32x4.add (f32x4.mul (local.get $p5) (local.get $r)) (local.get $p4)))
      (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $r)) (local.get $p3)))
      (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $r)) (local.get $p2)))
      (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $r)) (local.get $p1)))
      (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $r)) (local.get $p0)))
      (local.set $p (f32x4.mul (f32x4.mul (local.get $p) (local.get $r)) (local.get $r)))
      (local.set $p (f32x4.add (local.get $p) (f32x4.add (local.get $r) (local.get $one))))
      (local.set $n (i32x4.trunc_sat_f32x4_s (local.get $n)))
      (local.set $p (f32x4.mul (local.get $p)
        (i32x4.shl (i32x4.add (local.get $n) (local.get $bias)) (i32.const 23))))
      (v128.store (local.get $y) (local.get $p))
      (local.set $sum (f32x4.add (local.get $sum) (local.get $p)))
      (local.set $x (i32.add (local.get $x) (i32.const 16)))
      (local.set $y (i32.add (local.get $y) (i32.const 16)))
      (br_if $next (i32.lt_u (local.get $x) (local.get $end))))
    (f32x4.extract_lane 0
      (call $sums (local.get $sum) (local.get $sum) (local.get $sum) (local.get $sum)))))

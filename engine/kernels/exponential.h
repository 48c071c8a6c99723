// e to the power of numbers up to 0, and exactly 0 of what is far below. 2^n of the whole part of x / ln 2, times the
// series of e^r to the sixth power for the rest, |r| <= ln 2 / 2: off by 1.5e-7 of the result at most. Included like kernel.h.
static inline Floats exponential(Floats x) {
    const Floats least = all(-87.0f);
    const Floats in = larger(least, x);  // in this order what is no number stays none
    const Floats n = whole(times(in, all(1.44269504f)));
    const Floats r = fused(n, all(-1.42860677e-6f), fused(n, all(-0.693145752f), in));
    Floats sum = all(1.0f / 720);
    sum = fused(sum, r, all(1.0f / 120));
    sum = fused(sum, r, all(1.0f / 24));
    sum = fused(sum, r, all(1.0f / 6));
    sum = fused(sum, r, all(0.5f));
    sum = fused(sum, r, all(1.0f));
    sum = fused(sum, r, all(1.0f));
    return zero_below(times_two_to(sum, n), x, least);
}

// The hyperbolic tangent.
static inline Floats bounded(Floats x) {
    const Floats part = exponential(times(magnitude(x), all(-2.0f)));
    return signed_like(divided(less(all(1.0f), part), added(all(1.0f), part)), x);
}

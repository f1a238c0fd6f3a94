"""Image deconvolution: recover a sharp picture from a blurred and noisy one.

The recovered picture minimises the squared error after blurring plus its total variation, which keeps
edges sharp.  Blurring is a product of Fourier transforms; gradients flow through ``ad.fft``.

    python examples/deconvolution.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

NOISE, WEIGHT = 0.01, 1e-3


def drawing(size: int) -> Any:
    """Return a picture with a disc, a ring and bars of several widths."""
    y, x = np.mgrid[:size, :size] / size
    image = np.zeros((size, size))
    image[np.hypot(x - 0.3, y - 0.3) < 0.18] = 0.8
    image[np.abs(np.hypot(x - 0.72, y - 0.3) - 0.15) < 0.03] = 1.0
    for left, width in ((0.12, 0.12), (0.32, 0.08), (0.48, 0.06), (0.62, 0.04), (0.74, 0.04), (0.86, 0.02)):
        image[(x >= left) & (x < left + width) & (y > 0.6) & (y < 0.9)] = 0.9
    return image


def main(size: int = 64) -> float:
    rng = np.random.default_rng(0)
    sharp = drawing(size)
    y, x = np.mgrid[:size, :size] - size // 2
    spot = np.exp(-(x**2 + y**2) / (2 * 2.0**2))  # two pixels wide
    transfer = np.fft.rfft2(np.fft.ifftshift(spot / spot.sum()))

    def blur(image: Any) -> Any:
        return ad.fft.irfft2(ad.fft.rfft2(image) * transfer, s=(size, size))

    seen = blur(sharp).numpy() + NOISE * rng.normal(size=sharp.shape)

    def loss(image: Any) -> Any:
        across, down = ad.diff(image, axis=1)[:-1], ad.diff(image, axis=0)[:, :-1]
        variation = ad.sqrt(across**2 + down**2 + 1e-4).sum()  # rounded at 0, where it has a corner
        return ((blur(image) - seen) ** 2).sum() + WEIGHT * variation

    found = ad.interop.scipy.minimize(
        loss, seen, method="L-BFGS-B", bounds=[(0, None)] * size**2, options={"maxiter": 300}
    )

    recovered = found.x_flat.reshape(size, size)

    def error(image: Any) -> float:
        return float(np.sqrt(np.mean((image - sharp) ** 2)))

    print(f"{size**2} pixels, {found.nit} iterations")
    print(f"typical error of a pixel: {error(seen):.3f} blurred, {error(recovered):.3f} recovered")
    figure, axes = panels(3, width=8.4, height=3.2)
    titles = ("sharp", f"seen: error {error(seen):.2f}", f"recovered: error {error(recovered):.2f}")
    for one, title, image in zip(axes, titles, (sharp, seen, recovered), strict=True):
        one.imshow(image, cmap="gray", vmin=0, vmax=1)
        one.set_title(title, fontsize=11)
        one.set_axis_off()
    print(save(figure, "deconvolution.png"))
    return error(recovered) / error(seen)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""What our kernels for normalisation give, made of torch's own operations, for any device and precision."""

import torch


class Norms:
    """Normalisation with torch's own operations, in the pieces that kernels give."""

    def group_norm(self, images, weights, biases, shifts, groups, eps, rectify):
        images = images if shifts is None else images + shifts[:, None, None]
        grouped = images.unflatten(1, (groups, -1)).flatten(2)
        spread, centre = torch.var_mean(grouped, dim=2, correction=0)
        each = images.shape[1] // groups
        centres, scales = (v.repeat_interleave(each, dim=1) for v in (centre, (spread + eps).rsqrt()))
        normal = (images - centres[:, :, None, None]) * scales[:, :, None, None]
        out = normal * weights[:, None, None] + biases[:, None, None]
        return out.relu() if rectify else out, centres if shifts is None else centres - shifts, scales

    def group_norm_back(self, images, gradients, centres, scales, weights, biases, groups, rectify):
        normal = (images - centres[:, :, None, None]) * scales[:, :, None, None]
        if rectify:
            gradients = gradients * (normal * weights[:, None, None] + biases[:, None, None] > 0)
        change = gradients * weights[:, None, None]

        def over_groups(values):
            mean = values.unflatten(1, (groups, -1)).mean((2, 3, 4))
            return mean.repeat_interleave(images.shape[1] // groups, dim=1)[:, :, None, None]

        back = change - over_groups(change) - normal * over_groups(change * normal)
        back = back * scales[:, :, None, None]
        return back, *((one).sum((0, 2, 3)) for one in (gradients * normal, gradients, back))

    def batch_norm(self, images, others, weights, biases, shifts, mean, variance, momentum, eps, rectify):
        spread, centre = torch.var_mean(images, dim=(0, 2, 3), correction=0)
        scale, count = (spread + eps).rsqrt(), images[:, 0].numel()
        out = (images - centre[:, None, None]) * (scale * weights)[:, None, None] + biases[:, None, None]
        out = out if others is None else out + others
        centred = centre if shifts is None else centre + shifts
        running = (mean.lerp(centred, momentum), variance.lerp(spread * count / (count - 1), momentum))
        return out.relu() if rectify else out, torch.stack([centre, scale, *running])

    def batch_norm_back(self, images, gradients, results, kept, weights, biases, rectify):
        normal = (images - kept[0][:, None, None]) * kept[1][:, None, None]
        if rectify:
            out = normal * weights[:, None, None] + biases[:, None, None] if results is None else results
            gradients = gradients * (out > 0)
        plain, along = (values.mean((0, 2, 3), keepdim=True) for values in (gradients, gradients * normal))
        back = (gradients - plain - normal * along) * (kept[1] * weights)[:, None, None]
        return back, (gradients * normal).sum((0, 2, 3)), gradients.sum((0, 2, 3)), gradients

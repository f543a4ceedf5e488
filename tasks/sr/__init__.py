"""SR: super-resolution of faces by diffusion, FFHQ and CelebA-HQ with the protocol of SR3."""

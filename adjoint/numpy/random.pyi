# Written by tools/stubs/generate.py with NumPy 2.4
"""The types of ``adjoint.numpy.random``."""


from numpy.random import MT19937 as MT19937
from numpy.random import PCG64 as PCG64
from numpy.random import PCG64DXSM as PCG64DXSM
from numpy.random import SFC64 as SFC64
from numpy.random import BitGenerator as BitGenerator
from numpy.random import Generator as Generator
from numpy.random import Philox as Philox
from numpy.random import RandomState as RandomState
from numpy.random import SeedSequence as SeedSequence
from numpy.random import beta as beta
from numpy.random import binomial as binomial
from numpy.random import bytes as bytes
from numpy.random import chisquare as chisquare
from numpy.random import choice as choice
from numpy.random import default_rng as default_rng
from numpy.random import dirichlet as dirichlet
from numpy.random import exponential as exponential
from numpy.random import f as f
from numpy.random import gamma as gamma
from numpy.random import geometric as geometric
from numpy.random import get_state as get_state
from numpy.random import gumbel as gumbel
from numpy.random import hypergeometric as hypergeometric
from numpy.random import laplace as laplace
from numpy.random import logistic as logistic
from numpy.random import lognormal as lognormal
from numpy.random import logseries as logseries
from numpy.random import multinomial as multinomial
from numpy.random import multivariate_normal as multivariate_normal
from numpy.random import negative_binomial as negative_binomial
from numpy.random import noncentral_chisquare as noncentral_chisquare
from numpy.random import noncentral_f as noncentral_f
from numpy.random import normal as normal
from numpy.random import pareto as pareto
from numpy.random import permutation as permutation
from numpy.random import poisson as poisson
from numpy.random import power as power
from numpy.random import rand as rand
from numpy.random import randint as randint
from numpy.random import randn as randn
from numpy.random import random as random
from numpy.random import random_integers as random_integers
from numpy.random import random_sample as random_sample
from numpy.random import ranf as ranf
from numpy.random import rayleigh as rayleigh
from numpy.random import sample as sample
from numpy.random import seed as seed
from numpy.random import set_state as set_state
from numpy.random import shuffle as shuffle
from numpy.random import standard_cauchy as standard_cauchy
from numpy.random import standard_exponential as standard_exponential
from numpy.random import standard_gamma as standard_gamma
from numpy.random import standard_normal as standard_normal
from numpy.random import standard_t as standard_t
from numpy.random import triangular as triangular
from numpy.random import uniform as uniform
from numpy.random import vonmises as vonmises
from numpy.random import wald as wald
from numpy.random import weibull as weibull
from numpy.random import zipf as zipf

# mypy: disable-error-code="overload-overlap, explicit-override"

__all__ = ["beta", "binomial", "bytes", "chisquare", "choice", "dirichlet", "exponential", "f", "gamma", "geometric", "get_state", "gumbel", "hypergeometric", "laplace", "logistic", "lognormal", "logseries", "multinomial", "multivariate_normal", "negative_binomial", "noncentral_chisquare", "noncentral_f", "normal", "pareto", "permutation", "poisson", "power", "rand", "randint", "randn", "random", "random_integers", "random_sample", "ranf", "rayleigh", "sample", "seed", "set_state", "shuffle", "standard_cauchy", "standard_exponential", "standard_gamma", "standard_normal", "standard_t", "triangular", "uniform", "vonmises", "wald", "weibull", "zipf", "Generator", "RandomState", "SeedSequence", "MT19937", "Philox", "PCG64", "PCG64DXSM", "SFC64", "default_rng", "BitGenerator"]


"""Making more of a mask: reuse fitted in closed form, and the paper's schedule alignment."""

from budcache.refine.align import Aligned, Learned, Lesson, Mean, Update, align
from budcache.refine.fit import Fitted, Rows, Target, fit

__all__ = ["Aligned", "Fitted", "Learned", "Lesson", "Mean", "Rows", "Target", "Update", "align", "fit"]

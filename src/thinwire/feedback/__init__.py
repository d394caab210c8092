"""What a rank remembers between steps."""

from thinwire.feedback.feedback import Feedback, FeedbackState
from thinwire.feedback.momentum import Momentum
from thinwire.feedback.none import Forget
from thinwire.feedback.residual import Residual

__all__ = ["Feedback", "FeedbackState", "Forget", "Momentum", "Residual"]

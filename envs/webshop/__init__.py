"""WebShop as text, light and faithful: official data or a generated shop, BM25 search, rewards with all parts.

Importing this package needs nothing but numpy; the search library is imported when a shop is loaded, and its absence is
then reported with the command that installs it.
"""

from .data import DATA_VARIABLE, DataFiles, Product, build_products, data_files
from .env import WebShopEnv, replay
from .generator import generate_catalogue
from .goals import Goal, build_goals, goal_from_record, split_ranges
from .hints import Hint, goal_hint
from .nouns import TitleNouns, title_nouns
from .prefixes import prefixed_search
from .prompts import parse_response, webshop_messages
from .reward import Reward, purchase_reward
from .search import SearchIndex
from .shop import Shop, ShopConfig, load_shop
from .skills import Skill, skill_bank, skills_for, skills_text, task_type_from_text
from .suite import WebShopSuite

__all__ = [
    "DATA_VARIABLE",
    "DataFiles",
    "Goal",
    "Hint",
    "Product",
    "Reward",
    "SearchIndex",
    "Shop",
    "ShopConfig",
    "Skill",
    "TitleNouns",
    "WebShopEnv",
    "WebShopSuite",
    "build_goals",
    "build_products",
    "data_files",
    "generate_catalogue",
    "goal_from_record",
    "goal_hint",
    "load_shop",
    "parse_response",
    "prefixed_search",
    "purchase_reward",
    "replay",
    "skill_bank",
    "skills_for",
    "skills_text",
    "split_ranges",
    "task_type_from_text",
    "title_nouns",
    "webshop_messages",
]
